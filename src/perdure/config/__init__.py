"""One configuration file, overridden by environment variables.

The file is TOML, at the path in ``PERDURE_CONFIG`` or in the user's configuration folder::

    bank = "postgresql://localhost/perdure"

    [jobs]
    concurrency = 8

Variables: ``PERDURE_BANK``, ``PERDURE_JOBS_CONCURRENCY``, and for each purpose of models
``PERDURE_MODEL_CHAT="openai/gpt-5, ollama/qwen3"``. Arguments come before both.
"""

from perdure.config.config_loader import Config, JobsConfig, config_file, data_folder, load
from perdure.config.section import choices
from perdure.config.settings import (
    COMPRESSION_TASKS,
    AgentsConfig,
    AlertConfig,
    ArtifactRule,
    ArtifactsConfig,
    AuditConfig,
    BudgetConfig,
    CacheConfig,
    CompressionModels,
    EncryptionConfig,
    GatewayConfig,
    HistoryConfig,
    LearningConfig,
    MetricsConfig,
    ModelsByComplexity,
    ModelsConfig,
    PriceConfig,
    ProviderConfig,
    ProxyConfig,
    PruneRule,
    RecallConfig,
    ReflectionConfig,
    RenditionsConfig,
    SecretsConfig,
    ServerConfig,
    StorageConfig,
)

__all__ = [
    "COMPRESSION_TASKS",
    "AgentsConfig",
    "AlertConfig",
    "ArtifactRule",
    "ArtifactsConfig",
    "AuditConfig",
    "BudgetConfig",
    "CacheConfig",
    "CompressionModels",
    "Config",
    "EncryptionConfig",
    "GatewayConfig",
    "HistoryConfig",
    "JobsConfig",
    "LearningConfig",
    "MetricsConfig",
    "ModelsByComplexity",
    "ModelsConfig",
    "PriceConfig",
    "ProviderConfig",
    "ProxyConfig",
    "PruneRule",
    "RecallConfig",
    "ReflectionConfig",
    "RenditionsConfig",
    "SecretsConfig",
    "ServerConfig",
    "StorageConfig",
    "choices",
    "config_file",
    "data_folder",
    "load",
]
