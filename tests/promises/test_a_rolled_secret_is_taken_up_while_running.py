"""The API secret is rolled at once: nothing is lost, and the new one in the file is used without a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.sandbox import SandboxConfig
from tests.promises.deployment import deployment, embedded, started, stopped
from tests.support.ports import eventually

ROLLED_S = 60.0


# case: S3, S4, I29
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_rolled_secret_is_taken_up_while_running(tmp_path: Path) -> None:
    config = SandboxConfig(seed=1, assumptions={"delivery_schedule": "short"})
    async with deployment(tmp_path, **embedded(tmp_path), config=config) as found:
        file, fresh = tmp_path / "secret", tmp_path / "secret.new"
        old = found.environ.pop("SVC_APP_SECRET")
        file.write_text(old)
        found.environ["SVC_APP_SECRET_FILE"] = str(file)
        roles = [found.process(role) for role in ("serve", "work", "sync")]

        async def is_refused() -> bool:
            return (await found.standing()).refused_at is not None

        async def is_accepted() -> bool:
            return not await is_refused()

        async with started(*roles):
            found.sandbox.set_webhook_url(f"{roles[0].addresses['public_url']}/webhooks/default")
            found.pay_order()
            await found.shipped(within_s=30)

            new = found.sandbox.engine.applications.roll_secret(found.sandbox.config.app_id, "immediately")
            found.pay_order()
            await eventually(is_refused, within_s=30, what="the refused credentials are known")

            fresh.write_text(new)
            fresh.replace(file)
            await found.shipped(ROLLED_S)
            await eventually(is_accepted, within_s=30, what="the credentials are known to be taken again")
            await found.settled()
            found.assert_one_parcel_each()
            assert await stopped(*roles) == [0, 0, 0]
        assert not [one.role for one in roles if old in one.log or new in one.log], "no secret is logged"
