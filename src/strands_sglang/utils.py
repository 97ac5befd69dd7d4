"""Import path of the shared clients and tokenizers in strands-sglang; see `strands_sglang.compat`."""

from .compat import get_client as get_client
from .compat import get_client_from_slime_args as get_client_from_slime_args
from .compat import get_tokenizer as get_tokenizer
