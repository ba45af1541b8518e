"""The audit trail: who did what to which record, and when.

Every write to an audited collection leaves an entry *in the same commit*: either both are there or
neither. An entry says who acted (`perdure.acting_as`), what was done, to which record, from which
version to which, and what its content was before and after — as hashes, never the content itself.
Reads leave entries too, where that is asked for; such an entry is durable before the answer is
handed out.

A hash is an HMAC over the content with a secret of the store, so that a short content cannot be
guessed from it by whoever sees the trail alone. Equal content has equal hashes within a store. In a
store with a master key the secret is encrypted, whatever else is; without one, whoever can read the
whole file has both.

Entries cannot be changed or deleted through the store, except that `AuditTrail.prune` removes old
ones, and says so in the trail. Whoever goes around the store, with the database's own tools, is
not stopped, but `AuditTrail.verify` shows where the trail of a record does not join.

`audit_middleware` adds the entries, `audit_trail` reads them, `audit_chain` follows one record's.
"""

from perdure.storage.audit.audit_chain import Gap, Verdict
from perdure.storage.audit.audit_entries import Action, AuditEntry
from perdure.storage.audit.audit_middleware import Audit
from perdure.storage.audit.audit_trail import AuditTrail, TrailPage

__all__ = ["Action", "Audit", "AuditEntry", "AuditTrail", "Gap", "TrailPage", "Verdict"]
