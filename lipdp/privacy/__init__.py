"""What a run may release, what it has released, and what that guarantees."""

from lipdp.privacy import provenance
from lipdp.privacy.guarantee import Privacy, schema
from lipdp.privacy.ledger import Ledger, Release
from lipdp.privacy.limits import GENERATORS
from lipdp.privacy.plan import Plan

__all__ = ["GENERATORS", "Ledger", "Plan", "Privacy", "Release", "provenance", "schema"]
