package v1

// LabelController says whose something is: on Cell resources and virtual nodes, the ID of
// the Kip.
const LabelController = "kip.elotl.co/controller"
