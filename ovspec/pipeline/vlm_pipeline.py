"""The pipeline for pictures: a drop-in for `openvino_genai.VLMPipeline`."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import openvino as ov
import openvino_genai
from openvino_genai import ChatHistory, GenerationConfig

from ovspec.errors import InvalidTypeError, InvalidValueError, refuses_as_genai
from ovspec.generation.generation_config import GenerationSettings
from ovspec.generation.results import DecodedResults
from ovspec.generation.streamer import Streamer
from ovspec.pipeline.generation_call import GenerationCall, PromptProgress
from ovspec.pipeline.loaded_pipeline import LoadedPipeline
from ovspec.pipeline.models.given_model import given_model
from ovspec.vision.picture_prompts import KEPT_BYTES, PicturePrompt, PicturePrompts
from ovspec.vision.pictures import Pixels, pictures_of
from ovspec.vision.vision_model import READ_BYTES, Encoded, part_of
from ovspec.vision.vision_of import read_vision, vision_kind
from ovspec_models import ModelInfo

_Progress: TypeAlias = "PromptProgress | None"
# Properties of keys and values say nothing to graphs that keep none.
_OF_CACHES = ("KV_CACHE_PRECISION", "KEY_CACHE", "VALUE_CACHE")


class VLMPipeline(LoadedPipeline):
    """Generates text about pictures, verifying drafts densely or sparsely.

    Args:
        models_path: folder that `optimum-cli export openvino --task image-text-to-text` wrote.
        arguments, tokenizer, device, config, properties: as of `LLMPipeline`; properties that concern no
            keys and values count for the parts that read pictures too.
        settings: the other arguments of `LLMPipeline`. Drafters read the prompt's tokens, in which one token
            stands for every row of a picture.

    Raises:
        InvalidValueError: a folder, model, draft or setting that can't be served; the message says why.
        RuntimeError: the native library does not fit the OpenVINO at hand.
    """

    _picture_bytes = KEPT_BYTES + READ_BYTES

    @refuses_as_genai
    def __init__(
        self,
        models_path: str | Path,
        *arguments: openvino_genai.Tokenizer | str | Mapping[str, Any],
        **settings: Any,
    ) -> None:
        if isinstance(models_path, Mapping):
            raise InvalidTypeError(
                "a map of models as text with tensors of weights is not taken: save them to a folder, and "
                "give that"
            )
        folder = given_model(models_path)
        vision_kind(folder)
        super().__init__(folder, *arguments, **settings)
        given = self.runner.backends.plugin_properties.items()
        properties = {name: value for name, value in given if not name.startswith(_OF_CACHES)}
        vision = read_vision(folder, self.runner.backends.device, properties)
        if vision.window and self.runner.attention.backend == "stock":
            vision.window = 2**31  # OpenVINO's own attention has windows for rows of pictures
        self._prompts = PicturePrompts(self._chat_prompts, vision)
        self._pictures: list[Encoded] = []  # of the chat

    def _read_info(self, folder: Path) -> ModelInfo:
        """Facts about the folder; the parts that read pictures count as well."""
        files = [part_of(folder, name).with_suffix(".bin") for name in vision_kind(folder).parts]
        return replace(ModelInfo.read(folder), shared_bytes=sum(file.stat().st_size for file in files))

    def set_chat_template(self, chat_template: str) -> None:
        """Take another chat template for the calls that follow.

        Raises:
            PipelineBusyError: while a call runs.
        """
        if not isinstance(chat_template, str):
            raise InvalidTypeError(f"chat_template: expected text, got {type(chat_template).__name__}")
        with self.alone("set_chat_template"):
            self._tokenizer.set_chat_template(chat_template)

    @property
    def picture_prompts(self) -> PicturePrompts:
        """What makes prompts of texts and pictures."""
        return self._prompts

    def generate(
        self,
        prompt: str | ChatHistory,
        *arguments: Any,
        images: Any = None,
        image: Any = None,
        videos: Any = None,
        audios: Any = None,
        generation_config: GenerationConfig | None = None,
        streamer: Streamer | None = None,
        prompt_progress: _Progress = None,
        **kwargs: Any,
    ) -> DecodedResults:
        """Generate, as `openvino_genai.VLMPipeline.generate` does.

        Args:
            prompt: a prompt, or a chat history. `<ov_genai_image_0>` in it stands for the first picture, or
                the model's own tags for one after the other; without any the pictures come first, in a
                history before its last message.
            arguments: `[images,] [videos,] [generation_config,] [streamer]`, as openvino_genai takes them.
            images, image: `openvino.Tensor` or arrays u8 `[height, width, 3]` or `[pictures, height, width,
                3]`, or pictures of Pillow; one, or a list. In a chat (`start_chat`) numbers go on from turn
                to turn; of a history all pictures are given in each call.
            videos, audios: nothing; others are refused.
            generation_config: replaces the pipeline's configuration for this call.
            streamer: gets text (a callable) or tokens (a `StreamerBase`) as they come.
            prompt_progress: as of `LLMPipeline.generate`.
            kwargs: single fields of the configuration.

        Raises:
            ValueError: an unsupported or contradicting option, a picture that can't be read, tags that fit no
                picture, or a prompt longer than the model's positions.
            PipelineBusyError: as of `LLMPipeline.generate`.
        """
        named = {"images": images, "videos": videos, "config": generation_config, "streamer": streamer}
        given = _positional(arguments, named)
        with self._admitted(prompt):
            return self._answer(prompt, given, image, audios, prompt_progress, kwargs)

    __call__ = generate

    @refuses_as_genai
    def _answer(
        self,
        prompt: str | ChatHistory,
        given: Mapping[str, Any],
        image: Any,
        audios: Any,
        prompt_progress: _Progress,
        kwargs: dict[str, Any],
    ) -> DecodedResults:
        for name, value in (("videos", given["videos"]), ("audios", audios)):
            if value is not None and (not isinstance(value, SequenceOf) or len(value)):
                raise InvalidValueError(f"{name}: only pictures are read; give images")
        if given["images"] is not None and image is not None:
            raise InvalidTypeError("image and images are given both: leave one of them out")
        settings, call = self._begin(given["config"], given["streamer"], prompt_progress, kwargs)
        pictures = pictures_of(given["images"] if image is None else image)
        if isinstance(prompt, ChatHistory):
            made = self._of_history(prompt, pictures, call)
        elif not isinstance(prompt, str):
            raise InvalidTypeError(f"prompt: expected text or a ChatHistory, got {type(prompt).__name__}")
        elif self._chat.history is not None:
            return self._take_turn(prompt, pictures, settings, call)
        else:
            made = self._of_text(prompt, pictures, settings, call)
        return self._finish(made, settings, call)

    def _finish(
        self, made: PicturePrompt, settings: GenerationSettings, call: GenerationCall
    ) -> DecodedResults:
        self._generate([made.tokens], settings, call, made.visual)
        return call.decoded(settings)

    def _of_text(
        self, text: str, pictures: list[Pixels], settings: GenerationSettings, call: GenerationCall
    ) -> PicturePrompt:
        """One prompt, through the chat template if there is one and it is wanted."""
        encoded = self._encode(pictures, call)
        content = self._prompts.marked(text, 0, len(encoded))
        if not (settings.apply_chat_template and self._tokenizer.chat_template):
            return self._prompts.prompt(content, encoded, templated=False)
        return self._of_messages(ChatHistory([{"role": "user", "content": content}]), encoded, call)

    def _of_history(
        self, history: ChatHistory, pictures: list[Pixels], call: GenerationCall
    ) -> PicturePrompt:
        """A history whose messages have tags, or pictures that come before the last message."""
        encoded, messages = self._encode(pictures, call), history.get_messages()
        contents = [message.get("content") for message in messages if isinstance(message, dict)]
        tagged = any(isinstance(one, str) and self._prompts.has_tag(one) for one in contents)
        first = 0
        for message in messages:
            content = message.get("content")
            if isinstance(content, str) and (tagged or message is messages[-1]):
                own = self._prompts.own_tags(content) if tagged else len(encoded)
                message["content"] = self._prompts.marked(content, first, own, len(encoded))
                first += own
        marked = ChatHistory(messages)
        marked.set_tools(history.get_tools())
        marked.set_extra_context(history.get_extra_context())
        return self._of_messages(marked, encoded, call)

    def _take_turn(
        self, text: str, pictures: list[Pixels], settings: GenerationSettings, call: GenerationCall
    ) -> DecodedResults:
        """A turn of the chat; one that is not answered leaves no pictures."""
        self._check_one_answer(settings)
        before = self._pictures if len(self._chat.history or ()) > 1 else []
        every = [*before, *self._encode(pictures, call)]
        content = self._prompts.marked(text, len(before), len(pictures))
        with self._chat.turn([content]) as turn:
            results = self._finish(self._of_messages(turn.history, every, call), settings, call)
            turn.answer, turn.cancelled = str(results), call.cancelled
        if not call.cancelled:
            self._pictures = every
        return results

    def _encode(self, pictures: list[Pixels], call: GenerationCall) -> list[Encoded]:
        with call.timed("prepare_embeddings_durations"):
            return [self._prompts.encode(picture) for picture in pictures]

    def _of_messages(
        self, history: ChatHistory, pictures: SequenceOf[Encoded], call: GenerationCall
    ) -> PicturePrompt:
        with call.timed("chat_template_durations"):
            text = self._chat_prompts.templated(history)
        with call.timed("tokenization_durations"):
            return self._prompts.prompt(text, pictures)


def _positional(arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Arguments by their names; images, videos, a configuration and a streamer may come without."""
    given, left = dict(named), list(arguments)

    def take(name: str) -> None:
        if given[name] is not None:
            raise InvalidTypeError(f"{name} is given twice: leave one out")
        given[name] = left.pop(0)

    for name in ("images", "videos"):
        if left and isinstance(left[0], (ov.Tensor, list, tuple)):
            take(name)
    if left and isinstance(left[0], GenerationConfig):
        take("config")
    if (left and callable(left[0])) or (left and isinstance(left[0], openvino_genai.StreamerBase)):
        take("streamer")
    if left:
        raise InvalidTypeError(
            f"generate: {type(left[0]).__name__} has no place; expected (prompt, [images,] [videos,] "
            "[generation_config,] [streamer])"
        )
    return given
