package main

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// A file is written as a whole or stays as it was, with its mode, and nothing is left beside it.
func TestAtomicFile(t *testing.T) {
	for _, failure := range []error{nil, syscall.ENOSPC} {
		dir := t.TempDir()
		path, link := filepath.Join(dir, "report.html"), filepath.Join(t.TempDir(), "link")
		testkit.RequireNoError(t, os.WriteFile(path, []byte("before"), 0o604))
		testkit.RequireNoError(t, os.Symlink(path, link))
		want := map[bool]string{true: "whole", false: "before"}[failure == nil]
		for _, at := range []string{link, filepath.Join(dir, "new")} {
			o, err := createAtomicFile(at)
			testkit.RequireNoError(t, err)
			io.WriteString(o.temp, "whole")
			if err := o.commitUnlessFailed(failure); err != failure {
				t.Errorf("commit(%v): %v", failure, err)
			}
		}
		if got, _ := os.ReadFile(path); string(got) != want {
			t.Errorf("the file has %q after %v; want %q", got, failure, want)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o604 {
			t.Errorf("the file is %v, %v; want the mode that it had", info, err)
		}
		if all, _ := os.ReadDir(dir); len(all) != map[bool]int{true: 2, false: 1}[failure == nil] {
			t.Errorf("after %v the directory has %v", failure, all)
		}
	}
}
