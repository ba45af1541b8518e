"""The audit trail: who did what to which record, and when.

Every write to an audited collection leaves an entry *in the same commit*: who acted
(`perdure.acting_as`), what was done to which record, from which version to which, and hashes of the
content before and after, never the content itself. Reads leave entries too, if configured; these
are durable before the answer is returned.

A hash is an HMAC with a secret of the store, so that short content cannot be guessed from the trail
alone. Equal content has equal hashes within a store. With a master key the secret is encrypted;
without one, whoever can read the whole file has both.

Entries cannot be changed or deleted through the store, except by `AuditTrail.prune`, which is
itself recorded. Changes made with the database's own tools are not prevented, but
`AuditTrail.verify` shows where the trail of a record does not join.
"""

from perdure.storage.audit.audit_chain import Gap, Verdict
from perdure.storage.audit.audit_entries import Action, AuditEntry
from perdure.storage.audit.audit_middleware import Audit
from perdure.storage.audit.audit_trail import AuditTrail, TrailPage

__all__ = ["Action", "Audit", "AuditEntry", "AuditTrail", "Gap", "TrailPage", "Verdict"]
