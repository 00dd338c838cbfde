// Package inspect says what waits, and why, and lets an operator act on it. It asks Redis
// alone: no pool has to run.
//
// An [Inspector] is made from the policies of the pools:
//
//	inspector, err := inspect.New(rdb, inspect.Config{Policies: policies})
//	...
//	w, err := inspector.Explain(ctx, "default", id)
//	fmt.Println(w.State, w.Rule, w.At, w.Jobs)
//
// [Inspector.CloseKey], [Inspector.SetLimit] and others change something. They take a
// [Reason], and [Inspector.Audit] lists what was changed, by whom and why.
//
// Keys are given in clear. An answer has them as they stand in Redis, see [Mask], and no
// error contains one. docs/inspect.md has every state with its meaning.
package inspect
