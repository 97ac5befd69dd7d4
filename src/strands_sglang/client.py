"""Import path of the client in strands-sglang; see `strands_sglang.compat`."""

from .compat import NON_RETRYABLE_STATUS_CODES as NON_RETRYABLE_STATUS_CODES
from .compat import SGLangClient as SGLangClient
