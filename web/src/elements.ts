// What elements become; the build puts it into each module.
export { Fragment, h } from "preact";
