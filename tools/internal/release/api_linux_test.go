package main

import (
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

var update = flag.Bool("update", false, "write each api.txt anew")

// publicPackages are the packages whose exported API is listed in their api.txt.
var publicPackages = []string{
	"tcp", "tcp/tcptest", "web", "pool", "hub", "hub/cluster", "hub/natsd",
	"tools/load", "tools/load/loadmetrics", "tools/doctor", "tools/admin", "tools/metrics",
}

// loadPackages returns a function that returns a package by its path. It reads the compiler's export data.
func loadPackages(t *testing.T) func(path string) (*types.Package, error) {
	t.Helper()
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}")
	for _, p := range publicPackages {
		list.Args = append(list.Args, root+"/"+p)
	}
	list.Dir = checkout
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
	return importer.ForCompiler(token.NewFileSet(), "gc", open).Import
}

// describeAPI returns the exported identifiers of a package, one per line and sorted. Fields and methods follow their
// type. Types that alias one of an internal package are described like the package's own.
func describeAPI(p *types.Package) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	qualify := func(other *types.Package) string {
		if other == p {
			return ""
		}
		return other.Name()
	}
	signature := func(o types.Object) string {
		return strings.TrimPrefix(types.TypeString(o.Type(), qualify), "func")
	}
	for _, name := range p.Scope().Names() {
		o := p.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		switch o := o.(type) {
		case *types.Const:
			add("const %s %s = %s", name, types.TypeString(o.Type(), qualify), o.Val())
		case *types.Var:
			add("var %s %s", name, types.TypeString(o.Type(), qualify))
		case *types.Func:
			add("func %s%s", name, signature(o))
		case *types.TypeName:
			typ := types.Unalias(o.Type())
			typeName := name
			if named, ok := typ.(*types.Named); ok && named.TypeParams().Len() > 0 {
				typeName = types.TypeString(typ, qualify)
			}
			switch u := typ.Underlying().(type) {
			case *types.Struct:
				add("type %s struct", typeName)
				for field := range u.Fields() {
					switch {
					case field.Exported() && field.Embedded():
						add("type %s struct, embeds %s", typeName, types.TypeString(field.Type(), qualify))
					case field.Exported():
						add("type %s struct, %s %s", typeName, field.Name(), types.TypeString(field.Type(), qualify))
					}
				}
			case *types.Interface:
				add("type %s interface", typeName)
				for m := range u.Methods() {
					if m.Exported() {
						add("type %s interface, %s%s", typeName, m.Name(), signature(m))
					}
				}
				continue
			default:
				add("type %s %s", typeName, types.TypeString(u, qualify))
			}
			values := types.NewMethodSet(typ)
			for m := range types.NewMethodSet(types.NewPointer(typ)).Methods() {
				receiver := "*" + typeName
				if values.Lookup(p, m.Obj().Name()) != nil {
					receiver = typeName
				}
				if m.Obj().Exported() {
					add("method (%s) %s%s", receiver, m.Obj().Name(), signature(m.Obj()))
				}
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// TestAPI compares the exported API of each public package on Linux with its api.txt.
func TestAPI(t *testing.T) {
	load := loadPackages(t)
	for _, name := range publicPackages {
		p, err := load(root + "/" + name)
		testkit.RequireNoError(t, err)
		file := filepath.Join(checkout, name, "api.txt")
		got := describeAPI(p)
		if *update {
			testkit.RequireNoError(t, os.WriteFile(file, []byte(got), 0o644))
			continue
		}
		want, err := os.ReadFile(file)
		testkit.RequireNoError(t, err)
		for _, change := range diffLines(string(want), got) {
			t.Errorf("%s: %s", name, change)
		}
	}
	if t.Failed() {
		t.Log("a line with - breaks programs. After a change that is intended, run" +
			" go test ./tools/internal/release -run API -update, and name it in CHANGELOG.md.")
	}
}

// diffLines returns the lines that only one of two texts has: the first's with -, then the second's with +.
func diffLines(before, after string) (changes []string) {
	for _, c := range []struct{ sign, text, other string }{{"-", before, after}, {"+", after, before}} {
		others := strings.Split(c.other, "\n")
		for line := range strings.Lines(c.text) {
			if line = strings.TrimSuffix(line, "\n"); !slices.Contains(others, line) {
				changes = append(changes, c.sign+line)
			}
		}
	}
	return changes
}
