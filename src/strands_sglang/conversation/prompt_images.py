"""Images of prompts: each is decoded and sized once in an episode, and placed where the template prints it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from ..exceptions import MediaError
from ..tokenizer import TokenizerAdapter
from ..trajectory import Image
from ..trajectory.media import ImageEncoding, ImageExpander, Medium, PreparedImage, place_images
from .formats import PromptFormat
from .messages import ChatConversation
from .model_options import SGLangConfig


class PromptImages:
    """The images of an episode; `expander` expands them, None for a model that takes none."""

    def __init__(self, tokens: TokenizerAdapter, expander: ImageExpander | None) -> None:
        self.expander = expander
        self._tokens = tokens
        self._prepared: dict[tuple[bytes, int | None, ImageEncoding], PreparedImage | str] = {}

    def reset(self) -> None:
        """Forget the images."""
        self._prepared.clear()

    def select_new(self, images: Iterable[Image], options: SGLangConfig) -> list[Image]:
        """The images that `prepare` has not seen; none for a model that takes none."""
        if self.expander is None:
            return []
        return [image for image in images if _key(image, options) not in self._prepared]

    def prepare(self, image: Image, options: SGLangConfig) -> PreparedImage:
        """Decode, convert and size an image, once; from any thread. `MediaError` if it cannot be shown."""
        if image.problem or self.expander is None:
            raise MediaError(image.problem or "this model takes text only")
        key = _, most, encoding = _key(image, options)
        if key not in self._prepared:  # read ahead, or shown again by a new root
            try:
                self._prepared[key] = self.expander.prepare(image.data, max_pixels=most, encoding=encoding)
            except MediaError as error:
                self._prepared[key] = str(error)
        prepared = self._prepared[key]
        if isinstance(prepared, str):
            raise MediaError(prepared)
        return prepared

    def check_role(self, prompt_format: PromptFormat, role: str) -> None:
        """Refuse (`MediaError`) images that the template would reorder, drop or repeat in messages of a role."""
        if self.expander is not None:
            prompt_format.check_images(self._tokens.token_text(self.expander.placeholder_id), role)

    def place(
        self, ids: array[int], chat: ChatConversation, prompt_format: PromptFormat, options: SGLangConfig
    ) -> tuple[Medium, ...]:
        """The images of the prompt `ids`, at their placeholders; `MediaError` if they cannot be exact."""
        if not chat.images:
            return place_images(ids, (), self.expander)
        if self.expander is None:
            count = f"{len(chat.images)} image{'s' * (len(chat.images) > 1)}"
            raise MediaError(
                f"the prompt has {count}, but the model was given no processor: pass processor= with the folder or hub "
                "id of the served vision-language model"
            )
        for role in {message["role"] for message in chat.messages if isinstance(message["content"], list)}:
            self.check_role(prompt_format, role)
        return place_images(ids, [self.prepare(image, options) for image in chat.images], self.expander)


def _key(image: Image, options: SGLangConfig) -> tuple[bytes, int | None, ImageEncoding]:
    return image.key, options["max_image_pixels"], ImageEncoding(options["image_encoding"])
