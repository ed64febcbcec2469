package main

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// shard is a part of the tests of packages, which runs in a process of its own: those
// that go beside each other, by t.Parallel, or a part of those that go alone. Its zero
// value is all.
type shard struct {
	name string // together, alone, or empty
	k, n int    // the k-th of n parts of those that go alone
}

// parseShard reads together, alone or alone:K/N.
func parseShard(text string) (shard, error) {
	name, part, some := strings.Cut(text, ":")
	s := shard{name: name, k: 1, n: 1}
	var errs [2]error
	if some {
		k, n, _ := strings.Cut(part, "/")
		s.k, errs[0] = strconv.Atoi(k)
		s.n, errs[1] = strconv.Atoi(n)
	}
	if !slices.Contains([]string{"", "together", "alone"}, name) || some && name != "alone" || errs != [2]error{} || s.k < 1 || s.k > s.n {
		return shard{}, fmt.Errorf("-shard=%s: want together, alone, or alone:K/N with K from 1 to N", text)
	}
	return s, nil
}

// of are the tests of the shard; alone has those of the packages that go alone.
func (s shard) of(tests []test, alone map[test]bool) (of []test) {
	i := 0
	for _, t := range tests {
		switch {
		case s.name == "", s.name == "together" && !alone[t]:
			of = append(of, t)
		case s.name == "alone" && alone[t]:
			// In turns, since neighbours in the order of names last alike.
			if i%s.n == s.k-1 {
				of = append(of, t)
			}
			i++
		}
	}
	return of
}

// expression matches the tests, for go test -run.
func expression(tests []test) string {
	var names []string
	for _, t := range tests {
		names = append(names, regexp.QuoteMeta(t.name))
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// goAlone names a file's tests that do not call t.Parallel themselves, in a statement of
// their own.
func goAlone(parsed *ast.File) (names []string) {
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !isTest(f) {
			continue
		}
		if !slices.ContainsFunc(f.Body.List, isParallel) {
			names = append(names, f.Name.Name)
		}
	}
	return names
}

func isParallel(statement ast.Stmt) bool {
	expr, ok := statement.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := expr.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	return ok && method.Sel.Name == "Parallel"
}
