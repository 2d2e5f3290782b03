"""Catalog: products and prices, merchant-wide, made in the dashboard only (spec, What the service does, 9)."""

from __future__ import annotations

from dataclasses import replace

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.money import parse_amount
from consumer.sandbox.engine.world import World
from consumer.sandbox.errors import Refusal


class Catalog:
    """Reads for the API; `add_*` and `archive_*` are the dashboard."""

    def __init__(self, world: World) -> None:
        self._world = world

    def add_product(self, merchant_id: str, name: str, *, product_id: str | None = None) -> r.Product:
        """A new product."""
        world = self._world
        product = r.Product(
            id=product_id or world.new_id("product"),
            seq=world.next_seq(),
            app_id=merchant_id,
            merchant_id=merchant_id,
            name=name,
            created_at=world.now(),
        )
        return world.put(world.products, product)

    def add_price(
        self,
        merchant_id: str,
        product_id: str,
        amount: str,
        *,
        interval_days: int | None = None,
        price_id: str | None = None,
    ) -> r.Price:
        """A one-time price, or with `interval_days` 30 or 365 a recurring one."""
        world = self._world
        micro = parse_amount(amount)
        if micro is None or micro <= 0:
            raise Refusal("validation_failed", "amount must be a decimal string", field="amount")
        if interval_days not in (None, 30, 365):
            raise Refusal("validation_failed", "interval_days must be 30 or 365", field="interval_days")
        if price_id is not None and price_id in world.prices:
            raise Refusal("conflict", "this price exists; prices are never edited", field="price_id")
        if product_id not in world.products:
            raise Refusal("not_found", field="product_id")
        price = r.Price(
            id=price_id or world.new_id("price"),
            seq=world.next_seq(),
            app_id=merchant_id,
            merchant_id=merchant_id,
            product_id=product_id,
            amount=micro,
            interval_days=interval_days,
            created_at=world.now(),
        )
        return world.put(world.prices, price)

    def archive_price(self, price_id: str) -> r.Price:
        """No session may sell it any more. Raises Refusal."""
        world = self._world
        price = world.prices.get(price_id)
        if price is None:
            raise Refusal("not_found")
        return world.put(world.prices, replace(price, archived=True))

    def archive_product(self, product_id: str) -> r.Product:
        """No session may sell its prices any more. Raises Refusal."""
        world = self._world
        product = world.products.get(product_id)
        if product is None:
            raise Refusal("not_found")
        return world.put(world.products, replace(product, archived=True))

    def for_session(self, merchant_id: str, price_id: str, mode: str) -> tuple[r.Price, r.Product]:
        """The price and product a session may sell; the documented refusals otherwise (cases X27, X28)."""
        price = self._world.prices.get(price_id)
        if price is None or price.merchant_id != merchant_id:
            raise Refusal("price_not_found", field="price_id")
        product = self._world.products.get(price.product_id)
        if product is None:
            raise Refusal("price_not_found", field="price_id")
        if mode == "subscription" and price.interval_days is None:
            raise Refusal("price_not_recurring", field="price_id")
        if mode == "payment" and price.interval_days is not None:
            raise Refusal("price_type_mismatch", field="price_id")
        if price.archived:
            raise Refusal("price_archived", field="price_id")
        if product.archived:
            raise Refusal("product_archived", field="price_id")
        return price, product
