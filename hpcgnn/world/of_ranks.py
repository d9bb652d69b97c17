"""Objects that belong to one rank of a job."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from hpcgnn.base.errors import HpcgnnError

T = TypeVar("T")


class OfRanks:
    """An object of one rank, which copies of the objects that hold it share, and which cannot be saved."""

    def __copy__(self: T) -> T:
        """An object of the same rank, whose attributes may be set without a change of this one."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self: T, memo: dict[int, Any]) -> T:
        return self

    def __reduce__(self) -> NoReturn:
        raise HpcgnnError(
            f"a {type(self).__name__} belongs to one rank of this job and cannot be saved: keep it outside of the model that is "
            "saved, or set that attribute to None before"
        )
