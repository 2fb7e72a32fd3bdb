"""Schedules: which labels the model sees next."""

PARTS = {
    "none": "fedstrata.schedule.none:Unscheduled",
    "stratified": "fedstrata.schedule.stratified:Stratified",
}
