"""Base class of the serializers, and lists of entries that are read in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from operator import attrgetter, itemgetter
from typing import Any, ClassVar, Final, NamedTuple

from drf_spectacular.drainage import get_override, set_override
from drf_spectacular.utils import OpenApiExample, PolymorphicProxySerializer
from rest_framework import serializers

from ...core.errors import InvalidJob
from ...core.inputs import short, suggest
from ...settings.conf import conf
from ..entry_errors import MOST_ERRORS
from ..parsing import too_many

#: options of members that a resource's own ``to_representation`` adds; their fields only document them
ADDED: Final[dict[str, Any]] = {"required": False, "source": "added"}
#: what the ``to_representation`` of these fields comes to for the values of this package
_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {
    serializers.CharField: str,
    serializers.IntegerField: int,
    serializers.BooleanField: bool,
}


class _Member(NamedTuple):
    """Member of a response, with what the base class would work out for each instance: where its value is."""

    name: str
    field: serializers.Field[Any, Any, Any, Any]
    from_object: Callable[[Any], Any]
    from_mapping: Callable[[Any], Any]
    render: Callable[[Any], Any]

    @classmethod
    def of(cls, name: str, field: serializers.Field[Any, Any, Any, Any]) -> _Member:
        """Return the member of a bound field."""
        source, render = str(field.source), _PLAIN.get(type(field), field.to_representation)
        if source == "*" or type(field).get_attribute is not serializers.Field.get_attribute:
            whole = _itself if source == "*" else field.get_attribute
            return cls(name, field, whole, whole, render)
        first, _, rest = source.partition(".")
        item, inner = itemgetter(first), attrgetter(rest or first)
        return cls(name, field, attrgetter(source), (lambda data: inner(item(data))) if rest else item, render)


def _itself(instance: Any) -> Any:
    return instance


class Resource(serializers.Serializer[Any]):
    """Base of all serializers. Reading refuses unknown members: most often they are misspelled.

    Attributes:
        example: example of a response; members that are serializers take theirs from there.
        requests: examples of requests, by title.
        always: members that may be missing in requests, but are in every response.
    """

    example: ClassVar[Mapping[str, Any]] = {}
    requests: ClassVar[Mapping[str, Any]] = {}
    always: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Put the examples where drf-spectacular finds them."""
        super().__init_subclass__(**options)
        fields: Mapping[str, Any] = cls._declared_fields
        cls.example = {
            **_examples_of(fields),
            **getattr(super(cls, cls), "example", {}),
            **vars(cls).get("example", {}),
        }
        examples = [OpenApiExample(name, value, request_only=True) for name, value in cls.requests.items()]
        if cls.example:
            examples.append(_response_example(cls.example))
        set_override(cls, "examples", examples)

    @classmethod
    def read(cls, data: Any) -> dict[str, Any]:
        """Return the validated members of a request.

        Raises:
            ValidationError: the request is invalid.
        """
        reader = cls(data=data)
        reader.is_valid(raise_exception=True)
        return dict(reader.validated_data)

    @classmethod
    def render(cls, instance: Any, **context: Any) -> dict[str, Any]:
        """Return a response. Without a context one serializer renders all responses of its class."""
        renderer = cls(context=context) if context else cls._renderer()
        rendered: dict[str, Any] = renderer.to_representation(instance)
        return rendered

    @classmethod
    @cache
    def _renderer(cls) -> Resource:
        return cls()

    @cached_property
    def _members(self) -> list[_Member]:
        fields = [field for field in self._readable_fields if field.source != ADDED["source"]]
        return [_Member.of(str(field.field_name), field) for field in fields]

    def to_representation(self, instance: Any) -> Any:
        """Return the members as the base class does, in half its time: lists have thousands of values."""
        is_mapping = isinstance(instance, Mapping)
        rendered = {}
        for name, field, from_object, from_mapping, render in self._members:
            try:
                value = (from_mapping if is_mapping else from_object)(instance)
            except (AttributeError, KeyError):  # missing, or an item of an object's member
                try:
                    value = field.get_attribute(instance)
                except serializers.SkipField:
                    continue
            rendered[name] = None if value is None else render(value)
        return rendered

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values."""
        if isinstance(data, Mapping):
            fields = self.fields
            unknown = [name for name in data if name not in fields or fields[name].read_only]
            if unknown:
                names = ", ".join(name for name, field in fields.items() if not field.read_only)
                text = f"unknown member; known are: {names or 'none'}"
                raise serializers.ValidationError({str(name)[:60]: [text] for name in unknown[:10]})
        return super().to_internal_value(data)


def _examples_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the examples of the members that are serializers."""
    examples: dict[str, Any] = {}
    for name, field in fields.items():
        child = getattr(field, "child", field)
        if isinstance(child, Resource) and child.example and not field.write_only:
            examples[name] = child.example if child is field else [child.example]
    return examples


def one_of(name: str, *kinds: type[Resource], examples: Mapping[str, Any] | None = None) -> Any:
    """Return the schema of a body that is one of several resources.

    Args:
        name: name of the component.
        kinds: the resources.
        examples: examples of responses, by title; None = those of the resources, responses and requests.
    """
    schema = PolymorphicProxySerializer(component_name=name, serializers=list(kinds), resource_type_field_name=None)
    if examples is None:
        values = [_titled(example, kind) for kind in kinds for example in get_override(kind, "examples", [])]
    else:
        values = [_response_example(value, title) for title, value in examples.items()]
    return set_override(schema, "examples", values)


def _titled(example: OpenApiExample, kind: type[Resource]) -> OpenApiExample:
    """Return the example under a title that no example of another resource has."""
    title = kind.__name__.removesuffix("Serializer")
    return _response_example(example.value, title) if example.response_only else example


def with_example(kind: type[Resource], value: Mapping[str, Any]) -> Any:
    """Return the resource as the schema of one response, with an example of its own."""
    return set_override(kind(), "examples", [_response_example(value)])


def _response_example(value: Any, title: str = "example") -> OpenApiExample:
    return OpenApiExample(title, value, response_only=True, status_codes=["200", "201", "202"])


def exactly_one(attrs: Mapping[str, Any], *names: str) -> None:
    """Check that exactly one of these members is given, and that ``all`` is not false.

    Raises:
        ValidationError: none of them, or several.
    """
    if sum(name in attrs for name in names) != 1:
        raise serializers.ValidationError(f"give exactly one of {', '.join(names)}")
    if attrs.get("all") is False:
        raise serializers.ValidationError({"all": "send true, or leave it out"})


class Entry(Resource):
    """Base of the entries of a list. A member that is null counts as missing."""

    #: maximum number of entries; None = ``API["max_jobs"]``
    most: ClassVar[int | None] = None

    @classmethod
    def build(cls, values: dict[str, Any]) -> Any:
        """Return the entry with these validated values."""
        return values

    @classmethod
    @cache
    def checks(cls) -> tuple[dict[str, Callable[[Any], Any]], tuple[str, ...]]:
        """Return the check of each member, and the members that every entry has; created once for all requests."""
        fields: Mapping[str, Any] = cls().fields
        return {name: field.check for name, field in fields.items()}, tuple(
            name for name, field in fields.items() if field.required
        )


class EntriesField(serializers.Field[Any, Any, Any, Any]):
    """List of 1 … ``kind.most`` entries, read in one pass: hundreds of entries do not need hundreds of serializers."""

    def __init__(self, kind: type[Entry], **options: Any) -> None:
        super().__init__(**options)
        self.kind = kind

    def to_internal_value(self, data: Any) -> list[Any]:
        """Return the entries; errors are reported for all invalid entries, up to :data:`MOST_ERRORS`."""
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError("this is a list with at least one entry")
        most = self.kind.most or conf().api.max_jobs
        if len(data) > most:
            raise too_many(most, "jobs")
        checks, needed = self.kind.checks()
        entries, wrong = [], {}
        for place, entry in enumerate(data):
            errors: dict[str, Any] = {}
            values = _read_entry(entry, checks, needed, errors)
            if errors:
                wrong[str(place)] = errors.get("", errors)
                if len(wrong) == MOST_ERRORS:
                    break
            else:
                entries.append(self.kind.build(values))
        if wrong:
            raise serializers.ValidationError(wrong)
        return entries


def _read_entry(
    entry: Any, checks: Mapping[str, Callable[[Any], Any]], needed: tuple[str, ...], errors: dict[str, Any]
) -> dict[str, Any]:
    """Return the validated values of an entry; put what is wrong into ``errors``, by member, "" = the whole entry."""
    values: dict[str, Any] = {}
    if not isinstance(entry, dict):
        errors[""] = [f"this is an object with {', '.join(checks)}, not {short(entry)}"]
        return values
    for name, value in entry.items():
        try:
            if name not in checks:
                raise InvalidJob(f"unknown member.{suggest(name, checks)} Known are: {', '.join(checks)}")
            if value is not None or name in needed:
                values[name] = checks[name](value)
        except InvalidJob as error:
            errors[name[:60]] = [str(error)]
    for name in needed:
        if name not in entry:
            errors[name] = ["this is required"]
    return values
