"""What record types look like, kept in the store, version by version.

`SchemaRegistry` keeps descriptions (`type_shapes`) of the types that write to a store, checks data
against them (`schema_validation`), tells versions apart (`schema_comparison`), gives protobuf
fields their numbers (`schema_records`) and writes them as a .proto file (`proto_files`).
"""
