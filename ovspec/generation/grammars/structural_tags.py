"""Structural tags: text with parts in a given form, as xgrammar and openvino_genai describe it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import index
from typing import Any

from openvino_genai import StructuralTagsConfig, StructuredOutputConfig

from ovspec.generation.grammars.ebnf import lark_of_ebnf
from ovspec.generation.grammars.json_schema import closed_schema, schema_of, schema_text
from ovspec_models.folder.shown import shown

Tag = Mapping[str, Any]
_SCHEMA = "structural tag: json_schema"


def tags_of_config(config: StructuralTagsConfig) -> Tag:
    """openvino_genai's older form: free text, and tags that a trigger begins."""
    tags = [
        {"begin": tag.begin, "content": {"type": "json_schema", "json_schema": tag.schema}, "end": tag.end}
        for tag in config.structural_tags
    ]
    return {"type": "triggered_tags", "triggers": list(config.triggers), "tags": tags}


def lark_of_tag(tag: object) -> str:
    """A structural tag as a grammar of llguidance.

    Args:
        tag: an object of openvino_genai's, or the JSON of xgrammar and vLLM, as text or parsed.

    Raises:
        ValueError: it is no structural tag.
    """
    if isinstance(tag, str):
        try:
            tag = json.loads(tag)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON ({error}); give a structural tag") from None
    try:
        return _Rules().grammar(_plain(tag))
    except KeyError as error:
        raise ValueError(f"structural tag: {error.args[0]!r} is missing; give it") from None
    except (AttributeError, TypeError):
        message = "structural tag: expected objects with a 'type', lists of them, and texts"
        raise ValueError(message) from None
    except RecursionError:
        raise ValueError("structural tag: it is nested too deeply; make it flatter") from None


def _plain(tag: object) -> Tag:
    """A tag as xgrammar's JSON has it."""
    if isinstance(tag, Mapping):
        if tag.get("type") != "structural_tag":
            return tag
        if "format" in tag:
            return _plain(tag["format"])
        items: list[Tag] = [
            {
                "begin": one["begin"],
                "content": {"type": "json_schema", "json_schema": one["schema"]},
                "end": one["end"],
            }
            for one in tag["structures"]
        ]
        return {"type": "triggered_tags", "triggers": tag["triggers"], "tags": items}
    of = StructuredOutputConfig
    if isinstance(tag, str):
        return {"type": "const_string", "value": tag}
    for kind, name, field in (
        (of.ConstString, "const_string", "value"),
        (of.JSONSchema, "json_schema", "value"),
        (of.Regex, "regex", "value"),
        (of.EBNF, "grammar", "value"),
        (of.QwenXMLParametersFormat, "qwen_xml_parameter", "json_schema"),
    ):
        if isinstance(tag, kind):
            value = getattr(tag, field)
            if kind is of.JSONSchema:
                value = closed_schema(value, _SCHEMA)
            return {"type": name, _VALUES[name]: value}
    if isinstance(tag, of.AnyText):
        return {"type": "any_text"}
    if isinstance(tag, (of.Concat, of.Union)):
        kind_of = "sequence" if isinstance(tag, of.Concat) else "or"
        return {"type": kind_of, "elements": [_plain(one) for one in tag.elements]}
    if isinstance(tag, of.Tag):
        return {"type": "tag", "begin": tag.begin, "content": _plain(tag.content), "end": tag.end}
    if isinstance(tag, (of.TriggeredTags, of.TagsWithSeparator)):
        rest = {"at_least_one": tag.at_least_one, "stop_after_first": tag.stop_after_first}
        tags: list[Tag] = [_plain(one) for one in tag.tags]
        if isinstance(tag, of.TriggeredTags):
            return {"type": "triggered_tags", "triggers": list(tag.triggers), "tags": tags, **rest}
        return {"type": "tags_with_separator", "separator": tag.separator, "tags": tags, **rest}
    raise ValueError(f"expected a structural tag, got {type(tag).__name__}")


_KINDS = (
    *("const_string", "json_schema", "regex", "grammar", "any_text", "sequence", "or", "tag"),
    *("triggered_tags", "tags_with_separator", "qwen_xml_parameter"),
)
_VALUES = {
    "const_string": "value",
    "json_schema": "json_schema",
    "regex": "pattern",
    "grammar": "grammar",
    "qwen_xml_parameter": "json_schema",
}


_LENGTHS = ("minLength", "maxLength")
_JOINING = {"$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const"}


def is_written_as_text(schema: object) -> bool:
    """Whether a parameter in tags is written as the text that it is, and not as JSON.

    A string is, unless its values are listed; beside other types, only where any text will do.
    """
    if not isinstance(schema, Mapping):
        return False
    kinds, narrow = schema.get("type"), schema.keys() & {*_JOINING, *_LENGTHS, "pattern"}
    if kinds is None and narrow == {"anyOf"} and isinstance(schema["anyOf"], list):
        return any(
            is_written_as_text(one) and not one.keys() & {*_LENGTHS, "pattern"} for one in schema["anyOf"]
        )
    if kinds == "string":
        return not narrow & _JOINING and not ("pattern" in narrow and len(narrow) > 1)
    return isinstance(kinds, list) and "string" in kinds and not narrow


class _Rules:
    """The rules of one grammar as they are made."""

    def __init__(self) -> None:
        self._rules = ["TEXT: /(.|\\n)*/"]
        self._others: list[dict[str, str]] = []

    def grammar(self, tag: Tag) -> str:
        start = self._of(tag)
        lark = "\n".join(["%llguidance {}", f"start: {start}", *self._rules])
        if not self._others:
            return lark
        return json.dumps({"grammars": [{"name": "tags", "lark_grammar": lark}, *self._others]})

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _of(self, tag: Tag) -> str:
        """The name of a rule for a tag, or what stands for it."""
        try:
            kind = tag["type"]
            if kind not in _KINDS:
                raise ValueError(f"structural tag: type={shown(kind)}; expected one of {', '.join(_KINDS)}")
            return str(getattr(self, f"_{kind}")(tag))
        except KeyError as error:
            raise ValueError(
                f"structural tag: a {shown(tag.get('type', 'tag'))} has no {error.args[0]!r}"
            ) from None
        except TypeError:
            raise ValueError("structural tag: expected objects with a 'type'") from None

    def _const_string(self, tag: Tag) -> str:
        return _quoted(tag["value"])

    def _json_schema(self, tag: Tag) -> str:
        return self._rule(f"%json {schema_text(tag['json_schema'], _SCHEMA)}")

    def _regex(self, tag: Tag) -> str:
        from llguidance import regex_to_lark

        return self._rule(f"/{regex_to_lark(tag['pattern'])}/")

    def _grammar(self, tag: Tag) -> str:
        name = f"ebnf_{len(self._others)}"
        self._others.append({"name": name, "lark_grammar": lark_of_ebnf(tag["grammar"])})
        return f"@{name}"

    def _any_text(self, tag: Tag) -> str:
        return "TEXT"

    def _or(self, tag: Tag) -> str:
        return self._rule(" | ".join(self._of(one) for one in _some(tag, "elements")))

    def _sequence(self, tag: Tag) -> str:
        parts, elements = list[str](), _some(tag, "elements")
        for place, one in enumerate(elements):
            following = elements[place + 1] if place + 1 < len(elements) else None
            if one["type"] != "any_text" or following is None:
                parts.append(self._of(one))
            elif following["type"] == "const_string" and following["value"]:
                parts.append(self._until(following["value"]))
                elements[place + 1] = {"type": "const_string", "value": ""}
            elif following["type"] == "tag" and following["begin"]:
                parts.append(self._until(following["begin"]))
                elements[place + 1] = {**following, "begin": ""}
            else:
                raise ValueError("structural tag: any_text ends with a const_string or a tag behind it")
        return self._rule(" ".join(part for part in parts if part))

    def _tag(self, tag: Tag) -> str:
        begin, content, end = _quoted(tag["begin"]), tag["content"], tag["end"]
        if content["type"] == "any_text" and end:
            return self._rule(f"{begin} {self._until(end)}")
        return self._rule(f"{begin} {self._of(content)} {_quoted(end)}")

    def _triggered_tags(self, tag: Tag) -> str:
        heads, tags = [], _some(tag, "tags")
        for one in tags:
            trigger = next((word for word in tag["triggers"] if one["begin"].startswith(word) and word), None)
            if trigger is None:
                raise ValueError(
                    f"structural tag: begin={shown(one['begin'])} starts with none of the triggers "
                    f"{shown(tag['triggers'])}"
                )
            rest = self._tag({**one, "begin": one["begin"][len(trigger) :]})
            heads.append(f"{self._until(trigger)} {rest}")
        each = self._rule(" | ".join(heads))
        more = f"{each}*"
        if tag.get("at_least_one"):
            first = self._rule(" | ".join(self._tag(one) for one in tags))
            return first if tag.get("stop_after_first") else self._rule(f"{first} {more} TEXT")
        if tag.get("stop_after_first"):
            return self._rule(f"{each} | TEXT")
        return self._rule(f"{more} TEXT")

    def _tags_with_separator(self, tag: Tag) -> str:
        one = self._rule(" | ".join(self._tag(each) for each in _some(tag, "tags")))
        rest = "" if tag.get("stop_after_first") else f"({_quoted(tag['separator'])} {one})*"
        body = f"{one} {rest}"
        return self._rule(body if tag.get("at_least_one") else f"({body})?")

    def _qwen_xml_parameter(self, tag: Tag) -> str:
        schema = schema_of(tag["json_schema"], _SCHEMA)
        parts, required = [], schema.get("required", ())
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        for name, one in schema.get("properties", {}).items():
            value = self._value(schema_of(one, _SCHEMA), shared)
            part = f"{_quoted(f'<parameter={name}>')} {value} /[ \\n]{{0,4}}/"
            parts.append(part if name in required else f"({part})?")
        return self._rule(f"/[ \\n]{{0,4}}/ {' '.join(parts)}")

    def _value(self, schema: Tag, shared: Tag) -> str:
        """A parameter's value, and its closing tag.

        Args:
            shared: schemas that it may refer to.
        """
        if not is_written_as_text(schema):
            inner = self._json_schema({"json_schema": {**shared, **schema}})
            return f'/[ \\n]{{0,4}}/ {inner} /[ \\n]{{0,4}}/ "</parameter>"'
        if "pattern" in schema:
            return f'{self._regex({"pattern": schema["pattern"]})} "</parameter>"'
        if not any(name in schema for name in _LENGTHS):
            return self._until("</parameter>")
        least, most = (index(schema[name]) if name in schema else "" for name in _LENGTHS)
        text = f"T{len(self._rules)}"
        self._rules.append(rf"{text}: /\n?(.|\n){{{least or 0},{most}}}\n?/ & ~/(.|\n)*<\/parameter>(.|\n)*/")
        return self._rule(f'{text} "</parameter>"', "[lazy]")

    def _until(self, end: str) -> str:
        """Free text up to a word, and that word."""
        return self._rule(f"TEXT {_quoted(end)}", "[lazy]")


def _some(tag: Tag, name: str) -> list[Any]:
    if not (found := list(tag[name])):
        raise ValueError(f"structural tag: {name} of type={shown(tag['type'])} is empty; give one at least")
    return found


def _quoted(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError(f"structural tag: expected text, got {type(text).__name__}")
    return json.dumps(text) if text else ""
