"""The report in a real browser: it draws, it can be used with the keyboard, and nothing in a sample is run."""

from __future__ import annotations

import base64
import csv
import io
import json

import pytest

from strands_env.core import (
    Action,
    ErrorRecord,
    Observation,
    Phase,
    RewardResult,
    StepResult,
    TaskContext,
    TerminationReason,
    TokenObservation,
    Trajectory,
)
from strands_env.core.types import WeightVersionSpan
from strands_env.eval import EvalSample, read_results
from strands_env.eval.store import ResultLog, RunConfig, StorePaths
from strands_env.report import write_report, write_training
from strands_sglang.trajectory.media import PlacedMedium
from tests.integration.chromium import CHROMIUM, chromium

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian package 'chromium')")

HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\"><b>bold</b>"


class ByteTokenizer:
    """A token is a byte; encoding `ss` gives one token 200, so that a sampled `s`, `s` drifts."""

    def decode(self, ids, **options):
        return "".join("ss" if token == 200 else chr(token) for token in ids)

    def encode(self, text, **options):
        return [200 if part == "\0" else ord(part) for part in text.replace("ss", "\0")]


def tokens(prompt: str, answer: str) -> TokenObservation:
    ids = [*prompt.encode(), *answer.encode()]
    start = len(prompt)
    half = start + len(answer) // 2
    return TokenObservation(
        token_ids=ids,
        prompt_length=start,
        loss_mask=[0] * start + [1] * len(answer),
        logprobs=[None] * start + [-0.5] * len(answer),
        weight_versions=[
            WeightVersionSpan(version="1", start=start, end=half),
            WeightVersionSpan(version="2", start=half, end=len(ids)),
        ],
    )


def make_sample(number: int, index: int) -> EvalSample:
    failed = number % 5 == 4
    main, other = tokens("question ", "pass it"), tokens("question ", "no")
    error = ErrorRecord(type="TimeoutError", message=HOSTILE, traceback=HOSTILE, where=Phase.MODEL)
    result = StepResult(
        observation=Observation(
            messages=[
                {"role": "user", "content": [{"text": f"question {number} {HOSTILE}"}]},
                {"role": "assistant", "content": [
                    {"toolUse": {"toolUseId": "c1", "name": HOSTILE, "input": {"x": HOSTILE}}}]},
                {"role": "user", "content": [
                    {"toolResult": {"toolUseId": "c1", "status": "error", "content": [{"text": HOSTILE}]}}]},
                {"role": "assistant", "content": [{"text": "pass it"}]},
            ],
            tokens=main,
            metrics={
                "output_tokens": {"total": 7},
                "tool_calls": 1,
                "gateway": {"continued": 3, "extended": 2, "replayed": 1, "edited": 1, "roots": {"edited": 1}},
                "turns": [
                    {"model_s": 1.5, "tool_s": 0.5, "input_tokens": 9, "output_tokens": 7, "cached_tokens": 3},
                ],
            },
        ),
        reward=None if failed else RewardResult(reward=float((number + index) % 2), info={"why": HOSTILE}),
        termination_reason=TerminationReason.TIMEOUT if failed else TerminationReason.TASK_COMPLETE,
        error=error if failed else None,
        trajectories=[
            Trajectory(agent_name="agent", tokens=main, is_main=True),
            Trajectory(agent_name=HOSTILE, tokens=other, is_discarded=True),
        ],
    )  # fmt: skip
    return EvalSample(
        action=Action(
            message=f"question {number} {HOSTILE}", task_context=TaskContext(id=f"p{number}", ground_truth=HOSTILE)
        ),
        step_result=result,
        id=f"{number * 100 + index:032x}",
        prompt_id=f"p{number}",
        task_digest=f"{number:032x}",
        index=index,
    )


def make_report(folder, prompts: int, n: int, *, tokenizer=None):
    config = {"benchmark": "b", "model": {"model_id": "smollm2", "sampling_params": {"temperature": 1}}}
    RunConfig(StorePaths.of(folder).run, config).check(has_results=False)
    log = ResultLog(StorePaths.of(folder), fsync_interval=None)
    for number in range(prompts):
        log.append([make_sample(number, index) for index in range(n)])
    log.close()
    return write_report(folder, folder / "report.html", tokenizer=tokenizer, title=f"run {HOSTILE}")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_report(tmp_path_factory.mktemp("small"), 40, 2, tokenizer=ByteTokenizer())


async def opened(page, report):
    await page.open(report.path)
    return page


async def test_it_shows_the_numbers_and_nothing_of_a_sample_is_run(small, tmp_path):
    async with chromium(tmp_path) as page:
        await page.open(small.path)
        text = await page.run("document.body.innerText")
        assert "Mean reward\n0.500" in text
        assert "Samples\n80\nof 40 prompts" in text
        assert "model: TimeoutError" in text
        header = await page.run("document.querySelector('[data-testid=header]').textContent")
        assert header.startswith("model smollm2temperature 1")
        assert "trajectories change when re-tokenised: other-merge" in text
        assert "Extended\n66.6%\n160 of 240 histories; roots: edited 80; 80 replays, 80 edits" in text
        await page.press("Enter")
        await page.until("document.querySelectorAll('.message').length >= 4")
        for tab in "123456":
            await page.press(tab)
        assert await page.run("document.title") == f"run {HOSTILE}"
        assert await page.run("document.querySelectorAll('img, b, iframe').length") == 0
        assert page.problems == []


async def test_it_is_used_with_the_keyboard_alone(small, tmp_path):
    async with chromium(tmp_path) as page:
        await page.open(small.path)
        await page.run("document.querySelector('[data-testid=prompts]').focus()")
        await page.press("ArrowDown", "j", "ArrowUp", "Enter")
        await page.until("document.querySelector('.drawer h2').textContent === 'p1, sample 0'")
        await page.until("document.querySelectorAll('.message').length > 0")
        await page.press("ArrowRight")
        await page.until("document.querySelector('.drawer h2').textContent === 'p1, sample 1'")
        assert await page.run("location.hash") == "#3"
        await page.press("Escape")
        assert await page.run("document.querySelector('.drawer').hidden")
        assert await page.run("document.activeElement.dataset.testid") == "prompts"
        await page.press("?")
        assert not await page.run("document.querySelector('[data-testid=help]').hidden")
        await page.press("Escape", "/")
        assert await page.run("document.activeElement.type") == "search"


async def test_keys_pressed_before_a_sample_is_unpacked_wait_for_it(small, tmp_path):
    async with chromium(tmp_path) as page:
        await page.open(small.path)
        await page.run(
            "(() => { const press = (key) => document.body.dispatchEvent(new KeyboardEvent('keydown', "
            "{ key, bubbles: true })); document.querySelector('.row').click(); press('2'); press('ArrowRight'); "
            "press('3'); press('2'); })()"
        )
        await page.until("document.querySelectorAll('main .t, main [data-i], main .tokens').length > 0")
        assert await page.run("document.querySelector('.drawer h2').textContent") == "p0, sample 1"
        assert await page.run("document.querySelector('[data-tab=tokens]').getAttribute('aria-selected')") == "true"
        assert page.problems == []


async def test_search_and_filters(small, tmp_path):
    async with chromium(tmp_path) as page:
        await page.open(small.path)
        await page.press("/", *"question 39")
        await page.until("document.querySelector('[data-testid=count]').textContent === '1 of 40'")
        choose = (
            "const s = document.querySelector('select'); s.value = 'unscored'; s.dispatchEvent(new Event('change'))"
        )
        await page.run(f"(() => {{ const q = document.querySelector('input'); q.value = ''; {choose} }})()")
        await page.until("document.querySelector('[data-testid=count]').textContent === '8 of 40'")


async def test_tokens_have_their_colours_drift_and_branches(small, tmp_path):
    async with chromium(tmp_path) as page:
        await page.open(small.path)
        await page.press("Enter")
        await page.until("document.querySelectorAll('.message').length > 0")
        await page.press("2")
        assert await page.run("document.querySelector('.tokens [data-i]').dataset.i") == str(len("question "))
        await page.run("document.querySelector('[data-testid=fold]').click()")
        assert await page.run("document.querySelectorAll('.tokens .tok.trained').length") == len("pass it")
        assert await page.run("document.querySelectorAll('.tokens .tok.plain').length") == len("question ")
        drifted = "[...document.querySelectorAll('.tokens .tok.drift')].map(t => t.textContent).join('|')"
        assert await page.run(drifted) == "s|s"
        await page.run("document.querySelector('[data-testid=drift]').click()")
        assert 're-tokenising gives ["ss"]' in await page.run("document.querySelector('.inspect').textContent")
        await page.run("document.querySelector('[data-mode=logprob]').click()")
        heat = "getComputedStyle(document.querySelector('[data-i=\"9\"]')).backgroundColor"
        light = await page.run(heat)
        await page.press("t")
        dark = await page.run(heat)
        assert light.startswith("rgb(") and dark.startswith("rgb(") and light != dark
        await page.run("document.querySelector('[data-mode=version]').click()")
        assert await page.run("document.querySelectorAll('.tokens .tok.v0').length") == 3
        assert await page.run("document.querySelectorAll('.tokens .tok.v1').length") == 4
        await page.press("5")
        nodes = await page.run(
            "[...document.querySelectorAll('.node > :first-child')].map(n => n.textContent).join('|')"
        )
        assert nodes == "9 tokens, 0 trained|7 tokens, 7 trained|2 tokens, 2 trained"
        assert page.problems == []


async def test_turns_group_reasons_and_what_the_model_read(small, tmp_path):
    async with chromium(tmp_path) as page:
        await page.open(small.path)
        await page.press("Enter")
        await page.until("document.querySelectorAll('.message').length > 0")
        text = "document.querySelector('[data-testid={}]').textContent"
        assert (await page.run(text.format("why"))).startswith("why </script>")
        assert "9 tokens, as the model read it" in await page.run(text.format("prompt"))
        assert (await page.run(text.format("prompt"))).endswith("question ")
        await page.press("3")
        cells = "[...document.querySelectorAll('[data-testid=turns] tbody td')].map(c => c.textContent).join('|')"
        assert (await page.run(cells)).endswith("|1.50 s|0.50 s|9|33%|7|-0.500")
        await page.press("4")
        await page.until("document.querySelectorAll('[data-testid=group] .column').length === 2")
        await page.run("document.querySelectorAll('[data-testid=group] .column-head')[1].click()")
        await page.until("document.querySelector('.drawer h2').textContent === 'p0, sample 1'")
        assert page.problems == []


async def test_what_failed_comes_first_and_what_is_listed_is_saved(small, tmp_path):
    async with chromium(tmp_path) as page:
        await page.open(small.path)
        await page.run(
            "window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return 'data:,'; };"
            "HTMLAnchorElement.prototype.click = () => {};"
        )
        choose = "(() => {{ const box = document.querySelector('[aria-label={}]'); box.value = '{}'; {} }})()"
        await page.run(choose.format("Order", "failed|rank", "box.dispatchEvent(new Event('change'))"))
        rows = "[...document.querySelectorAll('.row')].slice(0, 4).map((row) => row.children[1].textContent).join()"
        assert await page.run(rows) == "0.500,0.500,0.500,0.500"  # one of two passed; unscored prompts come behind
        await page.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'By sample').click()")
        await page.run(choose.format("Order", "failed|rank", "box.dispatchEvent(new Event('change'))"))
        assert await page.run(rows) == "0.000,0.000,0.000,0.000"
        await page.run(choose.format("Filter", "passed", "box.dispatchEvent(new Event('change'))"))
        for name in ("CSV", "JSON"):
            await page.run(f"[...document.querySelectorAll('button')].find((b) => b.textContent === '{name}').click()")
        table = list(csv.DictReader(io.StringIO(await page.run("saved[0].text()"))))
        listed = json.loads(await page.run("saved[1].text()"))
        assert [row["id"] for row in table] == [row["id"] for row in listed] and len(listed) == 32
        assert {row["reward"] for row in listed} == {1} and {row["reward"] for row in table} == {"1"}
        assert HOSTILE.startswith(table[0]["expected"][:60]) and table[0]["text"].startswith("question ")
        assert page.problems == []


async def test_results_of_tools_are_headed_tool(small, tmp_path):
    async with chromium(tmp_path) as page:
        await page.open(small.path)
        await page.press("Enter")
        await page.until("document.querySelectorAll('.message').length > 0")
        roles = "[...document.querySelectorAll('article.message .role')].map((role) => role.textContent).join()"
        assert await page.run(roles) == "user,assistant,tool,assistant"


async def test_any_field_filters_and_any_column_sorts(small, tmp_path):
    count = "document.querySelector('[data-testid=count]').textContent"
    async with chromium(tmp_path) as page:
        await page.open(small.path)
        await page.run("document.querySelector('[data-mode=samples]').click()")
        assert await page.run(count) == "80 of 80"
        await page.press("/", *"reward<1 ended:complete")
        await page.until(f"{count} === '32 of 80'")
        await page.run("(() => { const q = document.querySelector('input'); q.value = 'reward=none'; "
                       "q.dispatchEvent(new Event('input')); })()")  # fmt: skip
        assert await page.run(count) == "16 of 80"
        await page.run("[...document.querySelectorAll('.head button')].find(b => b.textContent === 'Sample').click()")
        assert await page.run("document.querySelector('.row').textContent") == await page.run(
            "[...document.querySelectorAll('.row')].find(r => r.textContent.startsWith('p39/1')).textContent"
        )
        assert page.problems == []


async def test_a_training_on_one_page(tmp_path):
    for step in (1, 2, 10):
        make_report(tmp_path / "runs" / f"step-{step}", 6, 2)
    written = write_training(tmp_path / "runs", tmp_path / "training.html")
    (tmp_path / "profile").mkdir()
    async with chromium(tmp_path / "profile") as page:
        await page.open(written.path)
        assert "Steps\n3\n1 to 10" in await page.run("document.body.innerText")
        await page.press("Enter")
        await page.until("document.querySelectorAll('[data-testid=answers]').length === 3")
        assert page.problems == []


@pytest.mark.parametrize("width", [390, 820, 1280])
async def test_no_width_needs_sideways_scrolling(width, small, tmp_path):
    async with chromium(tmp_path) as page:
        await page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
        )
        await page.open(small.path)
        root = "document.documentElement"
        assert await page.run(f"{root}.scrollWidth <= {root}.clientWidth") is True
        await page.press("Enter")
        await page.until("document.querySelectorAll('.message').length > 0")
        for tab in "123456":
            await page.press(tab)
            main = "document.querySelector('main')"
            assert (tab, await page.run(f"{main}.scrollWidth <= {main}.clientWidth")) == (tab, True)


async def test_light_and_dark(small, tmp_path):
    async with chromium(tmp_path) as page:
        background = "getComputedStyle(document.body).backgroundColor"
        await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        await page.open(small.path)
        assert await page.run(background) == "rgb(18, 21, 26)"
        await page.press("t")
        assert await page.run(background) == "rgb(246, 247, 249)"


async def test_ten_thousand_samples_need_only_the_rows_in_sight(tmp_path):
    report = make_report(tmp_path / "run", 2500, 4)
    assert report.samples == 10_000
    (tmp_path / "profile").mkdir()
    async with chromium(tmp_path / "profile") as page:
        await page.open(report.path)
        assert await page.run("document.querySelector('[data-testid=count]').textContent") == "2,500 of 2,500"
        assert await page.run("document.querySelectorAll('.row').length") < 60
        await page.run("document.querySelector('[data-testid=prompts]').focus()")
        await page.press("End", "Enter")
        await page.until("document.querySelectorAll('.message').length >= 4")
        assert await page.run("document.querySelector('.drawer h2').textContent") == "p2499, sample 0"
        assert await page.run("document.querySelectorAll('.row').length") < 60
        assert page.problems == []


def test_without_a_tokenizer_it_says_so_and_shows_ids(tmp_path):
    report = make_report(tmp_path, 1, 1)
    assert report.path.read_text().count("<script") == 1 + 2  # the program and two data islands
    assert len(list(read_results(tmp_path))) == 1


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def test_images_stand_where_the_model_saw_them_and_their_tokens_are_one(tmp_path):
    sample = make_sample(0, 0)
    shown = {"image": {"format": "png", "source": {"bytes": base64.b64decode(PIXEL)}}}
    sample.step_result.observation.messages[0]["content"].append(shown)
    url = f"data:image/png;base64,{PIXEL}"
    medium = PlacedMedium(data=url, digest="d", processor="p", grid=(1, 2, 8), offset=2, length=4)
    sample.step_result.trajectories[0].media.append(medium)
    RunConfig(StorePaths.of(tmp_path).run, {"benchmark": "b"}).check(has_results=False)
    log = ResultLog(StorePaths.of(tmp_path), fsync_interval=None)
    log.append([sample])
    log.close()
    report = write_report(tmp_path, tmp_path / "report.html", tokenizer=ByteTokenizer())
    async with chromium(tmp_path) as page:
        await page.open(report.path)
        await page.press("Enter")
        await page.until("document.querySelectorAll('.message img').length === 1")
        await page.until("document.querySelector('.message img').naturalWidth === 1")
        await page.press("2")
        await page.until("!!document.querySelector('[data-testid=fold]')")
        await page.run("document.querySelector('[data-testid=fold]').click()")
        run = "document.querySelector('.tokens [data-i=\"2\"]')"
        await page.until(f"!!{run}")
        assert await page.run(f"{run}.textContent") == "e × 4"
        assert await page.run(f"{run}.querySelector('img').naturalWidth") in (0, 1)
        assert await page.run('document.querySelectorAll(\'.tokens [data-i="3"], .tokens [data-i="5"]\').length') == 0
        await page.run(f"{run}.focus()")
        await page.press("ArrowRight")
        assert await page.run("document.activeElement.dataset.i") == "6"
        await page.press("ArrowLeft")
        assert await page.run("document.activeElement.dataset.i") == "2"
        assert page.problems == []
