// Package cloudmodel owns what models of clouds' APIs have in common, so that the model of one cloud has only that cloud's words:
// parameters, answers, refusals and rights. Here are the machines behind a model, with their clock; the count of its calls; what
// goes wrong with calls, and the orders by which tests and people say so; who shows a token; what expires; pages; images; servers.
// It must not know a cloud: no SDK, no model and no cloud's word is in it. Package hardware below it puts real machines behind one.
//
// A model embeds a Model, and so has its methods. It gives each call that it is sent to Call, asks Machines for what a call does
// with instances, and Arrive for what it does beside them.
//
// Capacity, quotas, budgets of calls, delays, late lists and ends are those of internal/cloud/sim.
package cloudmodel
