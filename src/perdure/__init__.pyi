# Every public name, once: __init__.py imports a name when it is first used.
from perdure.artifacts import Artifact as Artifact
from perdure.bank import (
    Bank as Bank,
)
from perdure.bank import (
    open as open,
)
from perdure.bank.backup import check_backups as check_backups
from perdure.bank.bank_copy import restore as restore
from perdure.bank.session import Session as Session
from perdure.bank.session_reader import TailMessage as TailMessage
from perdure.config import Config as Config
from perdure.context.context import Context as Context
from perdure.context.history_tools import (
    HISTORY_TOOLS as HISTORY_TOOLS,
)
from perdure.context.history_tools import (
    MEMORY_TOOLS as MEMORY_TOOLS,
)
from perdure.context.session_tools import Rendering as Rendering
from perdure.core.actors import acting_as as acting_as
from perdure.core.errors import (
    AccessDenied as AccessDenied,
)
from perdure.core.errors import (
    AllFailed as AllFailed,
)
from perdure.core.errors import (
    ArtifactMissing as ArtifactMissing,
)
from perdure.core.errors import (
    BadAnswer as BadAnswer,
)
from perdure.core.errors import (
    BadBackup as BadBackup,
)
from perdure.core.errors import (
    BudgetReached as BudgetReached,
)
from perdure.core.errors import (
    BudgetTooSmall as BudgetTooSmall,
)
from perdure.core.errors import (
    Closed as Closed,
)
from perdure.core.errors import (
    Conflict as Conflict,
)
from perdure.core.errors import (
    Corrupted as Corrupted,
)
from perdure.core.errors import (
    DeadlineExceeded as DeadlineExceeded,
)
from perdure.core.errors import (
    GatewayError as GatewayError,
)
from perdure.core.errors import (
    InvalidConfig as InvalidConfig,
)
from perdure.core.errors import (
    InvalidInput as InvalidInput,
)
from perdure.core.errors import (
    InvalidKey as InvalidKey,
)
from perdure.core.errors import (
    InvalidQuery as InvalidQuery,
)
from perdure.core.errors import (
    InvalidRecordType as InvalidRecordType,
)
from perdure.core.errors import (
    InvalidURL as InvalidURL,
)
from perdure.core.errors import (
    InvalidValue as InvalidValue,
)
from perdure.core.errors import (
    KeyRefused as KeyRefused,
)
from perdure.core.errors import (
    MigrationFailed as MigrationFailed,
)
from perdure.core.errors import (
    NewerSchema as NewerSchema,
)
from perdure.core.errors import (
    NoModel as NoModel,
)
from perdure.core.errors import (
    NotAStore as NotAStore,
)
from perdure.core.errors import (
    NotIndexed as NotIndexed,
)
from perdure.core.errors import (
    PerdureError as PerdureError,
)
from perdure.core.errors import (
    PromptTooLong as PromptTooLong,
)
from perdure.core.errors import (
    ProviderDown as ProviderDown,
)
from perdure.core.errors import (
    RateLimited as RateLimited,
)
from perdure.core.errors import (
    Rejected as Rejected,
)
from perdure.core.errors import (
    SchemaMismatch as SchemaMismatch,
)
from perdure.core.errors import (
    StorageError as StorageError,
)
from perdure.core.errors import (
    StorageFull as StorageFull,
)
from perdure.core.errors import (
    StreamBroken as StreamBroken,
)
from perdure.core.errors import (
    TooLarge as TooLarge,
)
from perdure.core.errors import (
    Unauthorized as Unauthorized,
)
from perdure.core.errors import (
    Unavailable as Unavailable,
)
from perdure.core.errors import (
    UnknownBackend as UnknownBackend,
)
from perdure.core.errors import (
    Unsupported as Unsupported,
)
from perdure.core.messages import (
    ArtifactPointer as ArtifactPointer,
)
from perdure.core.messages import (
    Media as Media,
)
from perdure.core.messages import (
    Message as Message,
)
from perdure.core.messages import (
    Reasoning as Reasoning,
)
from perdure.core.messages import (
    Text as Text,
)
from perdure.core.messages import (
    ToolCall as ToolCall,
)
from perdure.core.messages import (
    ToolResult as ToolResult,
)
from perdure.core.messages import (
    Unknown as Unknown,
)
from perdure.core.messages import (
    Usage as Usage,
)
from perdure.core.turns import (
    Position as Position,
)
from perdure.core.turns import (
    Round as Round,
)
from perdure.core.turns import (
    Turn as Turn,
)
from perdure.gateway.calls import (
    CallOptions as CallOptions,
)
from perdure.gateway.calls import (
    Reply as Reply,
)
from perdure.gateway.calls import (
    Request as Request,
)
from perdure.gateway.calls import (
    Shape as Shape,
)
from perdure.gateway.calls import (
    Tool as Tool,
)
from perdure.gateway.gateway import Gateway as Gateway
from perdure.history.log_records import Link as Link
from perdure.history.pruning import prune_tool_results as prune_tool_results
from perdure.jobs import Job as Job
from perdure.recall.memory_records import Memory as Memory
from perdure.recall.values import (
    Hit as Hit,
)
from perdure.recall.values import (
    Recalled as Recalled,
)
from perdure.storage.assembly import open_store as open_store
from perdure.storage.collection import (
    Collection as Collection,
)
from perdure.storage.collection_reader import Stored as Stored
from perdure.storage.finder import (
    Page as Page,
)
from perdure.storage.finder import (
    all_of as all_of,
)
from perdure.storage.finder import (
    any_of as any_of,
)
from perdure.storage.finder import (
    tagged as tagged,
)
from perdure.storage.finder import (
    where as where,
)
from perdure.storage.memory_windows import TimeWindow as TimeWindow
from perdure.storage.options import (
    Consistency as Consistency,
)
from perdure.storage.options import (
    Options as Options,
)
from perdure.storage.options import (
    bounded as bounded,
)
from perdure.storage.records import (
    Compressed as Compressed,
)
from perdure.storage.records import (
    Encrypted as Encrypted,
)
from perdure.storage.records import (
    Indexed as Indexed,
)
from perdure.storage.records import (
    Key as Key,
)
from perdure.storage.records import (
    Tags as Tags,
)
from perdure.storage.records import (
    record as record,
)
from perdure.storage.rows import Index as Index
from perdure.storage.state_records import (
    StateRecord as StateRecord,
)
from perdure.storage.state_records import (
    StateRecords as StateRecords,
)
from perdure.storage.subscriptions import EventReceived as EventReceived
from perdure.storage.transaction import Transaction as Transaction
from perdure.sync import open_sync as open_sync

__version__: str

def __dir__() -> list[str]: ...
