//! Refusals by the application. The codes that an application chooses are not in the table.

section! {
    class: Entity,
    outcome: Final,
    codes: {
        INVALID_ARGUMENTS = "invalid-arguments" {
            retry: No,
            happened: "The arguments do not fit the method. The text says which one, and why.",
            help: "Fix them, and send a new message.",
        }
    }
}
