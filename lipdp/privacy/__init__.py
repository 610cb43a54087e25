"""What a run may release, what it has released, and what that guarantees."""

from lipdp.privacy.guarantee import Privacy as Privacy
from lipdp.privacy.guarantee import schema as schema
from lipdp.privacy.ledger import Ledger as Ledger
from lipdp.privacy.ledger import Release as Release
from lipdp.privacy.plan import Plan as Plan
