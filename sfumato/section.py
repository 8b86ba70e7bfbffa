"""The base of all settings: a frozen section whose fields say what cache keys hold of them."""

from typing import Self

from pydantic import BaseModel, ConfigDict

from sfumato.marks import NotFor

LATER = "later"
"""Marks a field, or a parameter of a stage, that came when there were cache keys without it. At its default, which therefore never changes, it is left out
of a key, so that nobody pays again for what an earlier version has paid."""
NOT_HASHED = "not hashed"
"""Marks a field, or a parameter of a stage, that says how fast, where or on whose behalf, not what: it is left out of every key."""


class Section(BaseModel):
    """Base of all settings: frozen, unknown names refused, each field explained by the text under it."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        ser_json_inf_nan="strings",
        validate_by_name=True,  # beside the alias of a field whose name Python keeps for itself
        serialize_by_alias=True,
    )

    def seen_by(self, work: str) -> Self:
        """The section as `work` sees it, and its cache keys hold it: fields marked `NotFor` it stand at one value for all runs."""
        same = {
            name: field.default if mark.at is None else mark.at
            for name, field in type(self).model_fields.items()
            for mark in field.metadata
            if isinstance(mark, NotFor) and work in mark.works
        }
        return self.model_copy(update=same)
