"""The report in a real browser: it draws, it can be used with the keyboard, and nothing in a sample is run."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import re
from itertools import pairwise
from operator import sub

import pytest

from strands_env.core import Action, ErrorRecord, Phase, TaskContext, TerminationReason, TokenObservation, Trajectory
from strands_env.core.types import WeightVersionSpan
from strands_env.eval import EvalSample
from strands_env.eval.report import write_report, write_training
from strands_env.eval.report.live import LiveRun
from strands_env.eval.report.server import LiveServer
from strands_env.eval.saved import RunTokenizer
from strands_env.eval.store import ResultLog, RunConfig, StorePaths
from strands_sglang.trajectory.media import PlacedMedium
from tests.integration.chromium import CHROMIUM, chromium
from tests.unit.eval_support import sample

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian package 'chromium')")

HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\"><b>bold</b>"
NAMED = {"button", "link", "image", "searchbox", "combobox", "listbox", "option", "dialog", "tab", "tabpanel", "cell"}
CHAIN = f"""Traceback (most recent call last):
  File "tool.py", line 3, in ask
OSError: the disk is full:
write to {HOSTILE}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "tool.py", line 5, in ask
TimeoutError: {HOSTILE}
"""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class ByteTokenizer:
    """A token is a byte; encoding `ss` gives one token 200, so that a sampled `s`, `s` drifts."""

    def decode(self, ids, **options):
        return "".join("ss" if token == 200 else chr(token) for token in ids)

    def encode(self, text, **options):
        return [200 if part == "\0" else ord(part) for part in text.replace("ss", "\0")]


def trajectory(answer: str, prompt: str = "question ", **facts) -> Trajectory:
    start, half, end = len(prompt), len(prompt) + len(answer) // 2, len(prompt) + len(answer)
    tokens = TokenObservation(
        token_ids=[*prompt.encode(), *answer.encode()],
        prompt_length=start,
        loss_mask=[0] * start + [1] * len(answer),
        logprobs=[None] * start + [-0.5] * len(answer),
        weight_versions=[
            WeightVersionSpan(version="1", start=start, end=half),
            WeightVersionSpan(version="2", start=half, end=end),
        ],
    )
    return Trajectory(tokens=tokens, **facts)


def make_sample(number: int, index: int) -> EvalSample:
    """Hostile texts everywhere, a failed call, two branches; every fifth prompt failed; an image in sample p0/1."""
    failed = number % 5 == 4
    main = trajectory("pass it", agent_name="agent", is_main=True)
    asked = [{"text": f"question {number} {HOSTILE}"}]
    if (number, index) == (0, 1):
        asked.append({"image": {"format": "png", "source": {"bytes": base64.b64decode(PIXEL)}}})
        url = f"data:image/png;base64,{PIXEL}"
        main.media.append(PlacedMedium(data=url, digest="d", processor="p", grid=(1, 2, 8), offset=2, length=4))
    called = {"toolUse": {"toolUseId": "c1", "name": HOSTILE, "input": {"x": HOSTILE}}}
    given = {"toolResult": {"toolUseId": "c1", "status": "error", "content": [{"text": HOSTILE}]}}
    turn = {"model_s": 1.5, "tool_s": 0.5, "input_tokens": 9, "output_tokens": 7, "cached_tokens": 3}
    made = sample(None if failed else float((number + index) % 2), index, prompt=f"p{number}")
    task = TaskContext(id=f"p{number}", ground_truth=HOSTILE)
    made.action = Action(message=f"question {number} {HOSTILE}", task_context=task)
    result = made.step_result
    result.observation.messages = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": [called]},
        {"role": "user", "content": [given]},
        {"role": "assistant", "content": [{"text": "pass it"}]},
    ]
    result.observation.metrics = {"output_tokens": {"total": 7}, "tool_calls": 1, "turns": [turn]}
    result.trajectories = [main, trajectory("no", agent_name=HOSTILE, is_discarded=True)]
    if failed:
        result.termination_reason = TerminationReason.TIMEOUT
        result.error = ErrorRecord(type="TimeoutError", message=HOSTILE, traceback=CHAIN, where=Phase.MODEL)
    else:
        result.reward.info = {"why": HOSTILE}
    return made


def make_report(folder, prompts: int, n: int, *, tokenizer=None):
    config = {"benchmark": "b", "model": {"model_id": "smollm2", "sampling_params": {"temperature": 1}}}
    RunConfig(StorePaths.of(folder).run, config).check(has_results=False)
    log = ResultLog(StorePaths.of(folder), fsync_interval=None)
    for number in range(prompts):
        log.append([make_sample(number, index) for index in range(n)])
    log.close()
    return write_report(folder, folder / "report.html", tokenizer=tokenizer, title=f"run {HOSTILE}").path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_report(tmp_path_factory.mktemp("small"), 40, 2, tokenizer=ByteTokenizer())


async def test_it_shows_the_numbers_and_the_samples_and_nothing_of_a_sample_is_run(small, tmp_path):
    async with chromium(tmp_path, small) as page:
        text = await page.run("document.body.innerText")
        for shown in (
            *("Reward, pass@1\n0.500", "Samples\n80\nof 40 prompts", "model: TimeoutError", "Drift\n80 of 160"),
            *("other-merge\n80", "the same characters split differently"),
        ):
            assert shown in text
        assert (await page.text("[data-testid=header]")).startswith("model smollm2temperature 1")
        await page.open_sample()
        assert await page.texts("article.message .role") == "user|assistant|tool|assistant"
        assert (await page.text("[data-testid=why]")).startswith("why </script>")
        assert "9 tokens, as the model read it" in (prompt := await page.text("[data-testid=prompt]"))
        assert prompt.endswith("question ")
        for tab in "123456":
            await page.press(tab)
            assert await page.count("b, iframe, img:not([src^='data:image/png;'])") == 0
        assert await page.run("document.title") == f"run {HOSTILE}"
        await page.press("3")
        assert (await page.texts("[data-testid=turns] tbody td")).endswith("|1.50 s|0.50 s|9|33%|7|-0.500")
        await page.press("4")
        await page.until("document.querySelectorAll('[data-testid=group] .column').length === 2")
        await page.run("document.querySelectorAll('[data-testid=group] .column-head')[1].click()")
        await page.until("document.querySelector('.drawer h2').textContent === 'p0, sample 1'")


async def test_an_error_shows_its_cause_first_and_its_lines_and_a_tile_leads_to_the_drifted_samples(small, tmp_path):
    async with chromium(tmp_path, small) as page:
        first = await page.run("document.querySelector('dd.lines').innerText")
        assert first.startswith("OSError: the disk is full:\nwrite to </script>")
        await page.click("[data-testid=drift-tile] button")
        assert await page.run("document.querySelector('input').value") == "drift>0"
        assert await page.text("[data-testid=count]") == "80 of 80"
        await page.run("location.hash = '#p4/0'")
        await page.until("document.querySelectorAll('.error-box').length === 1")
        shown = await page.run("document.querySelector('.error-box').innerText")
        assert shown.startswith(
            f"cause: OSError: the disk is full:\nwrite to {HOSTILE}\nerror in model: TimeoutError\n"
        )
        await page.click(".facts .link")  # to the place where it drifts
        assert await page.count("[data-testid=drift-rows]") == 1


async def test_it_is_used_with_the_keyboard_alone_also_before_a_sample_is_unpacked(small, tmp_path):
    async with chromium(tmp_path, small) as page:
        await page.run("document.querySelector('[data-testid=prompts]').focus()")
        await page.press("ArrowDown", "j", "ArrowUp")
        await page.open_sample()
        assert await page.text(".drawer h2") == "p1, sample 0"
        for tab in "123456":  # a screen reader has a name for everything
            await page.press(tab)
            tree = (await page.call("Accessibility.getFullAXTree"))["nodes"]
            shown = [(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if not node["ignored"]]
            assert [role for role, name in shown if role in NAMED and not name] == []
            assert {"searchbox", "listbox", "option", "image", "dialog", "tab", "tabpanel"} <= {
                role for role, _ in shown
            }
        await page.press("ArrowRight")
        await page.until("document.querySelector('.drawer h2').textContent === 'p1, sample 1'")
        assert await page.run("location.hash") == "#p1/1"
        await page.press("Escape")
        assert await page.run("document.querySelector('.drawer').hidden")
        assert await page.run("document.activeElement.dataset.testid") == "prompts"
        await page.press("?")
        assert not await page.run("document.querySelector('[data-testid=help]').hidden")
        await page.press("Escape", "/")
        await page.press(*"question 39")
        await page.until("document.querySelector('[data-testid=count]').textContent === '1 of 40'")
        await page.open(small)
        await page.run(
            "(() => { const press = (key) => document.body.dispatchEvent(new KeyboardEvent('keydown', "
            "{ key, bubbles: true })); document.querySelector('.row').click(); press('2'); press('ArrowRight'); "
            "press('3'); press('2'); })()"
        )
        await page.until("document.querySelectorAll('main .t, main [data-i], main .tokens').length > 0")
        assert await page.text(".drawer h2") == "p0, sample 1"
        assert await page.run("document.querySelector('[data-tab=tokens]').getAttribute('aria-selected')") == "true"


async def test_ten_thousand_samples_are_searched_filtered_sorted_and_saved(tmp_path):
    async def choose(box: str, value: str) -> None:
        place = f"document.querySelector('[aria-label={box}]')"
        await page.run(f"{place}.value = '{value}'; {place}.dispatchEvent(new Event('change'))")

    async def search(text: str, found: str) -> None:
        box = "document.querySelector('input')"
        await page.run(f"{box}.value = {text!r}; {box}.dispatchEvent(new Event('input'))")
        assert await page.text("[data-testid=count]") == found

    rows = "[...document.querySelectorAll('.row')].slice(0, 4).map((row) => row.children[1].textContent).join()"
    async with chromium(tmp_path, make_report(tmp_path / "run", 2500, 4)) as page:
        assert await page.text("[data-testid=count]") == "2,500 of 2,500"
        await page.run("document.querySelector('[data-testid=prompts]').focus()")
        await page.press("End")
        await page.open_sample()
        assert await page.text(".drawer h2") == "p2499, sample 0"
        assert await page.count(".row") < 60  # only those in sight exist
        await page.press("Escape")
        await choose("Order", "failed|rank")
        assert await page.run(rows) == "0.500,0.500,0.500,0.500"  # one of two passed; unscored prompts come behind
        await search("question 2499", "1 of 2,500")
        await page.click("[data-mode=samples]")
        await search("reward<1 ended:complete", "4,000 of 10,000")
        await search("reward=none", "2,000 of 10,000")
        assert await page.run("document.querySelector('[data-testid=problem]').hidden")
        for wrong, said in (
            ("rewrad<1", "There is no field “rewrad”: did you mean reward<1?"),
            ("colour=red", "There is no field “colour”; the fields are reward, "),
            ("drift>", "“drift>” needs a value, as in drift>0."),
            ("tokens=many", "tokens is a number: “many” is none"),
            ("ended>max", "ended is text: use = or != or : (contains), not >."),
        ):
            await search(f"question {wrong}", "10,000 of 10,000")  # what can be read still filters
            assert (await page.text("[data-testid=problem]")).startswith(said)
        await search('reward < 1 "ended=none"', "0 of 10,000")  # text in quotes is text
        await search("question", "10,000 of 10,000")
        await page.run("[...document.querySelectorAll('.head button')].find(b => b.textContent === 'Sample').click()")
        assert (await page.text(".row")).startswith("p2499/3")
        await search("question", "10,000 of 10,000")
        await choose("Order", "failed|rank")
        assert await page.run(rows) == "0.000,0.000,0.000,0.000"
        await choose("Filter", "passed")
        await page.run(
            "window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return 'data:,'; };"
            "HTMLAnchorElement.prototype.click = () => {};"
            "for (const b of document.querySelectorAll('button')) if (/^(CSV|JSON)$/.test(b.textContent)) b.click();"
        )
        table = list(csv.DictReader(io.StringIO(await page.run("saved[0].text()"))))
        listed = json.loads(await page.run("saved[1].text()"))
    assert [row["id"] for row in table] == [row["id"] for row in listed] and len(listed) == 4000
    assert {row["reward"] for row in listed} == {1} and {row["reward"] for row in table} == {"1"}
    assert HOSTILE.startswith(table[0]["expected"][:60]) and table[0]["text"].startswith("question ")


async def test_tokens_have_their_colours_drift_branches_and_images(small, tmp_path):
    async with chromium(tmp_path, small) as page:
        await page.open_sample()
        await page.press("2")
        assert await page.run("document.querySelector('.tokens [data-i]').dataset.i") == str(len("question "))
        await page.click("[data-testid=fold]")
        assert await page.count(".tokens .tok.trained") == len("pass it")
        assert await page.count(".tokens .tok.plain") == len("question ")
        assert await page.texts(".tokens .tok.drift") == "s|s"
        await page.click("[data-testid=drift]")
        assert 're-tokenising gives ["ss"]' in await page.text(".inspect")
        assert await page.texts("[data-testid=drift-rows] tr") == "sampledn pass it|from textn pass it"
        assert await page.texts("[data-testid=drift-rows] .changed .piece") == "s|s|ss"
        await page.click("[data-mode=logprob]")
        for _ in ("light", "dark"):  # neighbours in the legend (0, -0.5, -1.5, ...) can be told apart
            shown = "[...document.querySelectorAll('.legend .heat')].map((e) => getComputedStyle(e).backgroundColor)"
            colours = [[int(part) for part in re.findall(r"\d+", found)] for found in await page.run(shown)]
            assert len(colours) == 5
            assert all(sum(map(abs, map(sub, *pair))) >= 30 for pair in pairwise(colours)), colours
            await page.press("t")
        heat = "getComputedStyle(document.querySelector('[data-i=\"9\"]')).backgroundColor"
        light = await page.run(heat)
        await page.press("t")
        assert light.startswith("rgb(") and light != await page.run(heat)
        await page.click("[data-mode=version]")
        assert (await page.count(".tokens .tok.v0"), await page.count(".tokens .tok.v1")) == (3, 4)
        await page.press("5")
        nodes = "9 tokens, 0 trained|7 tokens, 7 trained|2 tokens, 2 trained"
        assert await page.texts(".node > :first-child") == nodes

        await page.press("1", "ArrowRight")
        await page.until("document.querySelector('.message img')?.naturalWidth === 1")
        await page.press("2")
        await page.until("!!document.querySelector('[data-testid=fold]')")
        await page.click("[data-testid=fold]")
        # The tokens of an image are one place.
        await page.until("document.querySelector('.tokens [data-i=\"2\"]')?.textContent === 'e × 4'")
        assert await page.count('.tokens [data-i="2"] img') == 1
        assert await page.count('.tokens [data-i="3"], .tokens [data-i="5"]') == 0
        await page.run("document.querySelector('.tokens [data-i=\"2\"]').focus()")
        for key, place in (("ArrowRight", "6"), ("ArrowLeft", "2")):
            await page.press(key)
            assert await page.run("document.activeElement.dataset.i") == place


async def test_a_training_on_one_page(tmp_path):
    for step in (1, 2, 10):
        make_report(tmp_path / "runs" / f"step-{step}", 6, 2)
    written = write_training(tmp_path / "runs", tmp_path / "training.html")
    async with chromium(tmp_path, written.path) as page:
        assert "Steps\n3\n1 to 10" in await page.run("document.body.innerText")
        await page.press("Enter")
        await page.until("document.querySelectorAll('[data-testid=answers]').length === 3")


async def test_it_fits_any_width_and_is_light_or_dark(small, tmp_path):
    def fits(element: str) -> str:
        return f"{element}.scrollWidth <= {element}.clientWidth"

    async with chromium(tmp_path, small) as page:
        values = "[...document.querySelectorAll('.tile .value')]"
        for width in (390, 480, 820, 1280):
            await page.open(small, width)
            await page.run("document.querySelector('h1').textContent = 'arithmetic'")
            top = await page.run("document.querySelector('.table').getBoundingClientRect().top")
            assert top < 400 or width < 480  # of 800
            await page.run(f"{values}.forEach((value) => {{ value.textContent = '1234 h 59 min'; }})")
            assert await page.run(f"{values}.every((value) => {fits('value')})") is True
            assert await page.run("document.querySelector('[type=search]').placeholder") == "Search ( / )"
            assert await page.run(fits("document.documentElement")) is True
            assert await page.run("getComputedStyle(document.querySelector('.row .num')).textAlign") == "right"
            assert await page.run(
                "[...document.querySelectorAll('svg')].every((e) => e.clientWidth <= e.parentNode.clientWidth)"
            )
            await page.open_sample()
            for tab in "123456":
                await page.press(tab)
                assert (width, tab, await page.run(fits("document.querySelector('main')"))) == (width, tab, True)
        background = "getComputedStyle(document.body).backgroundColor"
        await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        await page.open(small)
        assert await page.run(background) == "rgb(18, 21, 26)"
        await page.press("t")
        assert await page.run(background) == "rgb(246, 247, 249)"


async def test_a_page_follows_a_run_and_keeps_what_is_open_in_it(tmp_path):
    def append(*samples):
        log = ResultLog(StorePaths.of(tmp_path / "run"))
        log.append(list(samples))
        log.close()

    config = RunConfig(StorePaths.of(tmp_path / "run").run, {"benchmark": HOSTILE})
    config.check(has_results=False)
    append(make_sample(3, 0))
    live = LiveRun(tmp_path / "run", tokenizer=RunTokenizer(tokenizer=ByteTokenizer()))
    async with LiveServer(live) as server:
        following = asyncio.create_task(server.follow())
        async with chromium(tmp_path, server.address) as page:
            count = "document.querySelector('[data-testid=count]').textContent"
            assert await page.run(count) == "1 of 1"
            await page.open_sample()
            await page.press("2")
            assert await page.texts("[data-testid=drift-rows] .changed .piece") == "s|s|ss"
            append(
                *(make_sample(number, index) for number in (0, 1, 3) for index in (0, 1) if (number, index) != (3, 0))
            )
            await page.until(f"{count} === '3 of 3'")
            assert (await page.text("[data-testid=live]")).startswith("6 samples, ")
            assert await page.text(".drawer h2") == "p3, sample 0"  # open as it was, with others before it now
            await page.press("ArrowRight")
            await page.until("document.querySelector('.drawer h2').textContent === 'p3, sample 1'")
            await page.press("4")
            await page.until("document.querySelectorAll('[data-testid=group] .column').length === 2")
            await page.press("Escape")
            await page.run("location.hash = '#p0/1'")  # a link into the page
            await page.until("document.querySelector('.drawer h2').textContent === 'p0, sample 1'")
            assert await page.run("document.title") == HOSTILE
            following.cancel()
            await server.__aexit__(None, None, None)
            await page.until("!document.querySelector('.live .verdict').hidden")
            page.problems.clear()  # of the connection that was lost
