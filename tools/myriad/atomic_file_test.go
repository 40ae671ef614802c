package main

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A file is written as a whole or stays as it was, and nothing is left beside it.
func TestOutFile(t *testing.T) {
	const whole = "<html></html>"
	for name, c := range map[string]struct {
		old, then string // none if empty
		end       func(o *atomicFile) error
	}{
		"new":                   {"", whole, func(o *atomicFile) error { return o.commitUnlessFailed(nil) }},
		"old":                   {"before", whole, func(o *atomicFile) error { return o.commitUnlessFailed(nil) }},
		"new, on a full disk":   {"", "", func(o *atomicFile) error { return o.commitUnlessFailed(syscall.ENOSPC) }},
		"old, on a full disk":   {"before", "before", func(o *atomicFile) error { return o.commitUnlessFailed(syscall.ENOSPC) }},
		"old, which a run ends": {"before", "before", func(o *atomicFile) error { o.discard(); return syscall.EINTR }},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "report.html")
		if c.old != "" {
			failOnError(t, os.WriteFile(path, []byte(c.old), 0o604))
			link := filepath.Join(t.TempDir(), "link")
			failOnError(t, os.Symlink(path, link))
			path = link
		}
		o, err := createAtomicFile(path)
		failOnError(t, err)
		io.WriteString(o.temp, whole)
		if err := c.end(o); (err == nil) != (c.then == whole) {
			t.Errorf("%s: writing: %v", name, err)
		}
		got, err := os.ReadFile(path)
		if string(got) != c.then || (err != nil) != (c.then == "") {
			t.Errorf("%s: the file has %q, %v; want %q", name, got, err, c.then)
		}
		if info, err := os.Stat(path); c.old != "" && (err != nil || info.Mode().Perm() != 0o604) {
			t.Errorf("%s: the file is %v, %v; want the mode that it had", name, info, err)
		}
		if all, _ := os.ReadDir(dir); len(all) > 1 || len(all) == 1 && c.then == "" {
			t.Errorf("%s: beside it are %v", name, all)
		}
	}
}
