package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

const checkout = "../../.."

func copyFile(t *testing.T, to, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(checkout, name))
	if os.IsNotExist(err) {
		return
	}
	testkit.RequireNoError(t, err)
	testkit.RequireNoError(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755))
	testkit.RequireNoError(t, os.WriteFile(filepath.Join(to, name), text, 0o644))
}

func TestSetVersion(t *testing.T) {
	dir := t.TempDir()
	for _, folder := range append(append([]string{}, released...), private...) {
		copyFile(t, dir, filepath.Join(folder, "go.mod"))
		copyFile(t, dir, filepath.Join(folder, "go.work"))
	}
	testkit.RequireNoError(t, setVersionInModAndWorkFiles(dir, "v0.8.7"))
	if v, err := checkGoModFiles(dir); err != nil || v != "v0.8.7" {
		t.Errorf("modules require each other at %q, %v; want v0.8.7", v, err)
	}
	work, err := os.ReadFile(filepath.Join(dir, "go.work"))
	if err != nil || strings.Count(string(work), " v0.8.7 => ") != 3 {
		t.Errorf("go.work, %v:\n%s\nwant 3 replacements of v0.8.7", err, work)
	}
	f, err := os.OpenFile(filepath.Join(dir, "hub", "go.mod"), os.O_APPEND|os.O_WRONLY, 0)
	testkit.RequireNoError(t, err)
	testkit.Must(io.WriteString(f, "\nreplace example.com/x => ../x\n"))(t)
	f.Close()
	_, err = checkGoModFiles(dir)
	testkit.ExpectError(t, "with a replace directive", err, "replace directive")
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		check, tidy bool
		args        []string
		want        string
	}{
		{false, false, nil, "expected -check, -tidy or a version"},
		{true, true, nil, "expected -check, -tidy or a version"},
		{true, false, []string{"v1.0.0"}, "expected -check, -tidy or a version"},
		{false, false, []string{"v2.0.0"}, `version "v2.0.0"; expected one such as v0.2.0`},
		{false, false, []string{"1.0"}, `version "1.0"; expected one such as v0.2.0`},
	} {
		if err := checkTidyOrSetVersion(c.check, c.tidy, c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("check %v, tidy %v, %q: got %v, want %q", c.check, c.tidy, c.args, err, c.want)
		}
	}
}

func TestOwnSums(t *testing.T) {
	sums := "golang.org/x/sys v1 h1:a=\n" + root + " v1 h1:b=\n" + root + "/hub v1/go.mod h1:c=\n"
	if got := dropSumsOfOwnModules(sums); got != "golang.org/x/sys v1 h1:a=\n" {
		t.Errorf("got %q", got)
	}
}
