"""Schedules: which labels the model sees next."""

PARTS = {
    "none": "fedstrata.methods.schedules.none:Unscheduled",
    "stratified": "fedstrata.methods.schedules.stratified:Stratified",
}
