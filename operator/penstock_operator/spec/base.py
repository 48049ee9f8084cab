"""What the models of the API share: names in camelCase, descriptions from docstrings, texts that CEL checks."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Doc(BaseModel):
    """A part of an object as people write it."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        serialize_by_alias=True,
    )


def rule(expression: str, message: str, **more: str) -> dict[str, str]:
    """A check that the API server makes: `self` is the value at hand."""
    return {"rule": " ".join(expression.split()), "message": message, **more}


def checked(*rules: dict[str, str], **more: Any) -> dict[str, Any]:
    """For `json_schema_extra`."""
    return {"x-kubernetes-validations": list(rules), **more}


OPEN: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
"""Types of Kubernetes itself that would fill the definition many times over; the API server checks them in the pod."""

Duration = Annotated[
    str,
    Field(
        max_length=16,
        json_schema_extra=checked(
            rule(
                "self.matches('^[0-9]+(ms|s|m|h|d)$')",
                "M015 not a duration: write a whole number and a unit, such as 500ms, 30s, 5m, 6h or 7d",
            )
        ),
    ),
]
Cron = Annotated[
    str,
    Field(
        max_length=64,
        json_schema_extra=checked(
            rule(
                r"self.matches('^(\\S+\\s+){4}\\S+$')",
                "M015 not a schedule: five fields are needed (minute hour day month weekday), such as 0 */6 * * *",
            )
        ),
    ),
]
TimeZone = Annotated[str, Field(max_length=64)]
Place = Annotated[
    str,
    Field(
        max_length=1024,
        json_schema_extra=checked(
            rule(
                "self.matches('^(s3://[a-z0-9]|/)')",
                "M008 not a place for state: write s3://bucket/folder, or the absolute path of a volume that all pods"
                " of the job mount",
            )
        ),
    ),
]
Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
