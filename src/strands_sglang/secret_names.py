"""Secrets: names whose values must not be shown or saved, of options, headers and fields, and values without them."""

from __future__ import annotations

import re
from typing import Any

# Names of special tokens do not count.
_SECRET = re.compile(
    r"(^|(?<!bos|eos|pad|unk|sep|cls|end)[_-])token$|(access|auth|bearer|api|hf)[_-]?token|authorization|credential"
    r"|auth([_-]?header)?$|bearer|jwt|cookies?$|headers$|webhook|(^|[_-])(pass|pat)$|passwd|password|passphrase|secret"
    r"|(api|private|access|account|encryption|signing|shared|master|ssh)[_-]?key|connection[_-]?string|(^|[_-])pwd"
    r"|(?-i:^[A-Z0-9_]+_KEY$)",
    re.IGNORECASE,
)
# Names of headers, beside those: nothing else is called so there.
_HEADER = re.compile("key$|token|cookie", re.IGNORECASE)
_HUMP = re.compile("(?<=[a-z0-9])(?=[A-Z])")  # in camel case

_ASSIGNED = re.compile(
    r"(?P<start>(?<![\w.-])(?P<name>[\w.-]+)=|(?P<flag>--[\w-]+)\s+)"
    r"""(?P<secret>\.{3}|"[^"]*"|'[^']*'|[^\s&;#]+)"""
)
"""`NAME=value` and `--name value` in a text: a query, an environment, a command. The name decides."""
_LINE = re.compile(
    r"""(?P<start>(?<![\w.-])(?:-H)?(?P<name>[\w.-]+)(?P<quote>["']?)\s*:\s*["']?)"""
    r"""(?P<secret>(?!(?:true|false|null|none)\b)[^\s"'][^"'\n]*)""",
    re.IGNORECASE,
)
"""`Name: value` in a text, to the end of its line or quotation: a header, JSON, YAML."""
_SECRET_PART = re.compile(
    r"(?P<start>(?P<url>://(?=[^\s/?#]*@))|[?&](?:key|sig|signature|code)=|\bbearer\s+(?=\S*\d)"
    r"|\b(?:sk-|gh[pousr]_|github_pat_|hf_|xox[abp]-|akia|hooks\.slack\.com/)(?=[\w/-]{16}))"
    r"""(?P<secret>(?(url)[^\s/?#]*(?=@)|(?:\.{3}|[^\s&#"',;)]+)))""",
    re.IGNORECASE,
)
"""Secrets that a text shows without a name: the user of a URL, a signature, a key of a known kind."""


def is_secret_name(name: Any, *, is_header: bool = False) -> bool:
    """True for the name of a secret, in snake case, camel case or with dashes."""
    if not isinstance(name, str):
        return False
    words = _HUMP.sub("_", name)
    return _SECRET.search(words) is not None or (is_header and _HEADER.search(words) is not None)


def without_secrets(value: Any) -> Any:
    """JSON values with `...` in place of each secret: the values of secret names, and secrets inside of a text."""
    return _hide(value, [])


def lacks_secrets(value: Any) -> bool:
    """True where `without_secrets` took a secret out."""
    secrets: list[Any] = []
    _hide(value, secrets)
    return "..." in secrets


def _hide(value: Any, secrets: list[Any]) -> Any:
    """The value without its secrets, which are added to `secrets`."""

    def hide(secret: Any) -> Any:
        if not secret or secret is True:  # a switch, or nothing
            return secret
        secrets.append(secret)
        return "..."

    def hide_assigned(match: re.Match[str]) -> str:
        name = match["name"] or match["flag"]
        return f"{match['start']}{hide(match['secret'])}" if is_secret_name(name) else match[0]

    def hide_in_line(match: re.Match[str]) -> str:
        name, is_alone = match["name"], match[0] == value.strip() and " " not in match["secret"]
        # A word before a colon is prose, "Password: eight characters", unless it stands alone.
        is_name = match["quote"] or is_alone or _is_compound(name)
        return f"{match['start']}{hide(match['secret'])}" if is_name and _is_secret(name) else match[0]

    match value:
        case dict():
            entry = {str(name).lower(): item for name, item in value.items()}  # {"name": "API_KEY", "value": ...}
            named = any(_is_secret(entry.get(name)) for name in ("name", "key", "header"))
            return {
                name: hide(item)
                if is_secret_name(name) or (named and str(name).lower() == "value")
                else _hide(item, secrets)
                for name, item in value.items()
            }
        case [str(name), str(item)] if _is_compound(name) and _is_pair(value):
            return [name, hide(item)]
        case [[str(), _], *_] if all(isinstance(item, list) and len(item) == 2 for item in value):
            return [[item[0], hide(item[1])] if _is_pair(item) else _hide(item, secrets) for item in value]
        case list():  # ["--api-key", "..."]
            flags = [False, *(str(item).startswith("--") and is_secret_name(item) for item in value)]
            return [hide(item) if flag else _hide(item, secrets) for item, flag in zip(value, flags, strict=False)]
        case str():
            name, equals, secret = value.partition("=")
            if equals and name.isidentifier() and is_secret_name(name):  # of an environment, blanks included
                return f"{name}={hide(secret)}"
            text = _ASSIGNED.sub(hide_assigned, _LINE.sub(hide_in_line, value))
            return _SECRET_PART.sub(lambda match: f"{match['start']}{hide(match['secret'])}", text)
    return value


def _is_pair(pair: list[Any]) -> bool:
    """True for the name of a secret and its value, and not for two names."""
    return _is_secret(pair[0]) and not (isinstance(pair[1], str) and _is_secret(pair[1]))


def _is_secret(name: Any) -> bool:
    return is_secret_name(name, is_header=isinstance(name, str) and "-" in name and name.istitle())


def _is_compound(name: str) -> bool:
    """True for a name that no word of a sentence is: of several words, or of a header."""
    return bool(re.search(r"\w[_-]\w|[a-z][A-Z]", name)) or name.lower() in ("authorization", "cookie")
