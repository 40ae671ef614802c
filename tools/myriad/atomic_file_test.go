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
	const whole = "<html></html>"
	for _, old := range []string{"", "before"} {
		for _, failure := range []error{nil, syscall.ENOSPC} {
			dir := t.TempDir()
			path, want := filepath.Join(dir, "report.html"), old
			if old != "" {
				testkit.RequireNoError(t, os.WriteFile(path, []byte(old), 0o604))
				link := filepath.Join(t.TempDir(), "link")
				testkit.RequireNoError(t, os.Symlink(path, link))
				path = link
			}
			o, err := createAtomicFile(path)
			testkit.RequireNoError(t, err)
			io.WriteString(o.temp, whole)
			if err := o.commitUnlessFailed(failure); err != failure {
				t.Errorf("commit(%v): %v", failure, err)
			}
			if failure == nil {
				want = whole
			}
			if got, _ := os.ReadFile(path); string(got) != want {
				t.Errorf("the file with %q has %q after %v; want %q", old, got, failure, want)
			}
			if info, err := os.Stat(path); old != "" && (err != nil || info.Mode().Perm() != 0o604) {
				t.Errorf("the file is %v, %v; want the mode that it had", info, err)
			}
			if all, _ := os.ReadDir(dir); len(all) > 1 || len(all) == 1 && want == "" {
				t.Errorf("beside it are %v", all)
			}
		}
	}
}
