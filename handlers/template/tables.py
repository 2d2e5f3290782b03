"""Tables of the plugin's own: names begin with the plugin's, the application comes first in every key."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from sqlalchemy import Column, String, Table
from sqlmodel import Field, SQLModel

from consumer.plugin import UtcDateTime


class TemplateSale(SQLModel, table=True):
    """One paid order, written down once."""

    __tablename__ = "template_sale"
    __table__: ClassVar[Table]

    application: str = Field(sa_column=Column(String(64), primary_key=True))
    order_id: str = Field(sa_column=Column(String(255), primary_key=True))
    amount: str | None = Field(default=None, sa_column=Column(String(255)))
    sold_at: datetime = Field(sa_column=Column(UtcDateTime, nullable=False))
