// Systems type-checks the library for each system in its arguments, such as openbsd/amd64. With -all, it type-checks
// all packages of the workspace, tests included. That takes seconds, whereas a build would compile the standard
// library.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// library lists the packages that must compile on all systems.
var library = []string{"./tcp", "./web", "./pool"}

func main() {
	all := flag.Bool("all", false, "type-check the workspace with its tests, instead of the library")
	flag.Parse()
	packages := library
	if *all {
		packages = []string{"-test", "work"}
	}
	failed := false
	for _, system := range flag.Args() {
		errs, err := typeCheck(system, packages)
		if err != nil {
			errs = append(errs, err)
		}
		for _, err := range errs {
			fmt.Printf("%s: %v\n", system, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// source describes a package, as go list -json prints it.
type source struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
}

// ours is the prefix of the import paths of this repository's packages.
const ours = "github.com/myriad-go/myriad"

// typeCheck returns the type errors of this repository's packages on a system such as linux/amd64. packages are the
// package patterns that typeCheck passes to go list.
func typeCheck(system string, packages []string) (mistakes []error, err error) {
	goos, goarch, ok := strings.Cut(system, "/")
	if !ok {
		return nil, errors.New("expected GOOS/GOARCH")
	}
	list := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap"}, packages...)...)
	list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, err
	}
	done := imports{"unsafe": types.Unsafe}
	for all := json.NewDecoder(bytes.NewReader(out)); ; { // dependencies come first
		var s source
		if err := all.Decode(&s); err == io.EOF {
			return mistakes, nil
		} else if err != nil {
			return nil, err
		}
		if s.ImportPath == "unsafe" || strings.HasSuffix(s.ImportPath, ".test") { // the latter is generated
			continue
		}
		own := strings.HasPrefix(s.ImportPath, ours)
		files := token.NewFileSet()
		var parsed []*ast.File
		for _, name := range s.GoFiles {
			f, err := parser.ParseFile(files, filepath.Join(s.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			parsed = append(parsed, f)
		}
		config := types.Config{
			Importer: done.importerFor(s), Sizes: types.SizesFor("gc", goarch), IgnoreFuncBodies: !own, FakeImportC: true,
			Error: func(err error) {
				if own {
					mistakes = append(mistakes, err)
				}
			},
		}
		done[s.ImportPath], _ = config.Check(s.ImportPath, files, parsed, nil) // Error collects the mistakes
	}
}

// imports maps import paths to packages that have been checked.
type imports map[string]*types.Package

// importerFor returns an importer with which the package s can be checked. The importer finds only packages that the
// map contains.
func (all imports) importerFor(s source) types.Importer {
	return importer(func(path string) (*types.Package, error) {
		if to := s.ImportMap[path]; to != "" {
			path = to
		}
		if p := all[path]; p != nil {
			return p, nil
		}
		return nil, fmt.Errorf("package %s is not in the output of go list", path)
	})
}

type importer func(path string) (*types.Package, error)

func (f importer) Import(path string) (*types.Package, error) { return f(path) }
