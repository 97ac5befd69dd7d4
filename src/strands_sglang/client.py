"""Import path of the client in strands-sglang 0.3 to 0.6; `docs/migration.md` lists what it promises."""

from .backends.sglang import NON_RETRYABLE_STATUS_CODES as NON_RETRYABLE_STATUS_CODES
from .backends.sglang import SGLangClient as SGLangClient
