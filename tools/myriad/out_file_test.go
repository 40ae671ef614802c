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
		end       func(o *outFile) error
	}{
		"new":                   {"", whole, func(o *outFile) error { return o.finish(nil) }},
		"old":                   {"before", whole, func(o *outFile) error { return o.finish(nil) }},
		"new, on a full disk":   {"", "", func(o *outFile) error { return o.finish(syscall.ENOSPC) }},
		"old, on a full disk":   {"before", "before", func(o *outFile) error { return o.finish(syscall.ENOSPC) }},
		"old, which a run ends": {"before", "before", func(o *outFile) error { o.discard(); return syscall.EINTR }},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "report.html")
		if c.old != "" {
			must(t, os.WriteFile(path, []byte(c.old), 0o604))
			link := filepath.Join(t.TempDir(), "link")
			must(t, os.Symlink(path, link))
			path = link
		}
		o, err := createOut(path)
		must(t, err)
		io.WriteString(o.file, whole)
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
