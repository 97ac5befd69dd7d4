"""Import path of the shared clients and tokenizers in strands-sglang 0.3 to 0.6."""

from .backends.sglang import get_client as get_client
from .backends.sglang import get_client_from_slime_args as get_client_from_slime_args
from .backends.sglang import get_tokenizer as get_tokenizer
