// Package policy evaluates NetworkPolicies: from policies, namespaces and pods to
// what one pod may send and receive, in addresses and ports. It is pure: it imports
// no client, watches nothing and tells nobody.
//
// The semantics are those that k8s.io/api/networking/v1 documents. Where that
// leaves a choice:
//
//   - a pod counts with its addresses from when it has them until its phase is
//     Succeeded or Failed;
//   - pods with hostNetwork are neither selected nor found by selectors; a named
//     port never means one of theirs;
//   - a named port of an egress rule is, for each pod that the rule's peers include
//     (also by an ipBlock, or because there are no peers), the number that this
//     pod gives the name. A pod may give it several;
//   - a rule that lists ports, none of which exists, allows nothing.
//
// An [Index] knows which pods' rules a change touches: only these are evaluated
// again. What a rule's peers come to is worked out once for all pods that its policy
// selects.
package policy
