package activation

import (
	"slices"
	"strings"
	"testing"
)

// fakeEnv returns a getenv function with three variables.
func fakeEnv(pid, fds, names string) func(string) string {
	return func(name string) string {
		return map[string]string{"LISTEN_PID": pid, "LISTEN_FDS": fds, "LISTEN_FDNAMES": names}[name]
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name            string
		pid, fds, names string
		want            []string
	}{
		{"nothing", "", "", "", nil},
		{"names alone", "", "", "a:b", nil},
		{"another process", "6", "2", "", nil},
		{"another process, and wrong", "6", "x", "a:b:c", nil},
		{"one", "7", "1", "", []string{"unknown"}},
		{"three", "7", "3", "", []string{"unknown", "unknown", "unknown"}},
		{"names", "7", "3", "web:admin.socket:web", []string{"web", "admin.socket", "web"}},
		{"empty names", "7", "3", ":b:", []string{"", "b", ""}},
		{"as many as can be", "7", "1024", "", slices.Repeat([]string{"unknown"}, 1024)},
	} {
		got, err := parseListenEnv(fakeEnv(c.pid, c.fds, c.names), 7)
		if err != nil || !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ name, pid, fds, names, says string }{
		{"no process", "", "1", "", `LISTEN_FDS is "1", but LISTEN_PID is not set`},
		{"no count", "7", "", "", `LISTEN_PID is "7", but LISTEN_FDS is not set`},
		{"process is no number", "seven", "1", "", `LISTEN_PID is "seven"`},
		{"process is 0", "0", "1", "", `LISTEN_PID is "0"`},
		{"process is negative", "-7", "1", "", `LISTEN_PID is "-7"`},
		{"process with a space", " 7", "1", "", `LISTEN_PID is " 7"`},
		{"process with a zero", "07", "1", "", `LISTEN_PID is "07"`},
		{"process is too large", "99999999999999999999", "1", "", "LISTEN_PID is"},
		{"count is no number", "7", "1x", "", `LISTEN_FDS is "1x"; expected a number from 1 to 1024`},
		{"count is 0", "7", "0", "", `LISTEN_FDS is "0"`},
		{"count is negative", "7", "-1", "", `LISTEN_FDS is "-1"`},
		{"count is too large", "7", "1025", "", `LISTEN_FDS is "1025"`},
		{"count with a sign", "7", "+1", "", `LISTEN_FDS is "+1"`},
		{"count is long", "7", strings.Repeat("1", 1000), "", `LISTEN_FDS is "` + strings.Repeat("1", 20) + `"`},
		{"too few names", "7", "2", "web", `LISTEN_FDNAMES has 1 names ("web"); expected 2`},
		{"too many names", "7", "2", "a:b:", `LISTEN_FDNAMES has 3 names ("a:b:"); expected 2`},
	} {
		got, err := parseListenEnv(fakeEnv(c.pid, c.fds, c.names), 7)
		if err == nil || got != nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %q, %v; want an error that says %s", c.name, got, err, c.says)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("7", "2", "a:b")
	f.Add("7", "1024", "")
	f.Add("8", "-1", "::")
	f.Fuzz(func(t *testing.T, pid, fds, names string) {
		got, err := parseListenEnv(fakeEnv(pid, fds, names), 7)
		switch {
		case err != nil && (got != nil || len(err.Error()) > 1000):
			t.Errorf("%d names, and an error of %d bytes: %v", len(got), len(err.Error()), err)
		case got != nil && (pid != "7" || len(got) > maxFDs):
			t.Errorf("%d descriptors for %q", len(got), pid)
		case got != nil && names != "" && strings.Join(got, ":") != names:
			t.Errorf("%q gives %q", names, got)
		}
	})
}
