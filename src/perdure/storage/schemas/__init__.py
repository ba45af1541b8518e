"""What record types look like, kept in the store, version by version.

`SchemaRegistry` keeps descriptions (`shapes`) of the types that write to a store, checks data
against them (`validate`), tells versions apart (`compare`), gives protobuf fields their numbers
(`numbering`) and writes them as a .proto file (`proto`).
"""
