// The types of arguments and results.

export {
  any, array, boolean, integer, literal, map, named, nothing, nullable, number, object, optional, string, union,
} from "./types.js";
