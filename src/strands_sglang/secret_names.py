"""Names whose values must not be shown or written down: of options, environment variables, headers and JSON fields."""

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


def is_secret_name(name: Any, *, is_header: bool = False) -> bool:
    """True for the name of a secret, in snake case, camel case or with dashes."""
    if not isinstance(name, str):
        return False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return _SECRET.search(words) is not None or (is_header and _HEADER.search(words) is not None)
