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
		says            string // error
	}{
		{"names alone", "", "", "a:b", nil, ""},
		{"another process, and wrong", "6", "x", "a:b:c", nil, ""},
		{"one", "7", "1", "", []string{"unknown"}, ""},
		{"names", "7", "4", "web:admin.socket:web:", []string{"web", "admin.socket", "web", ""}, ""},
		{"as many as can be", "7", "1024", "", slices.Repeat([]string{"unknown"}, 1024), ""},
		{"no process", "", "1", "", nil, `LISTEN_FDS is "1", but LISTEN_PID is not set`},
		{"no count", "7", "", "", nil, `LISTEN_PID is "7", but LISTEN_FDS is not set`},
		{"process is no number", "seven", "1", "", nil, `LISTEN_PID is "seven"`},
		{"process is 0", "0", "1", "", nil, `LISTEN_PID is "0"`},
		{"process with a zero", "07", "1", "", nil, `LISTEN_PID is "07"`},
		{"process is too large", "99999999999999999999", "1", "", nil, "LISTEN_PID is"},
		{"count is no number", "7", "1x", "", nil, `LISTEN_FDS is "1x"; expected a number from 1 to 1024`},
		{"count is 0", "7", "0", "", nil, `LISTEN_FDS is "0"`},
		{"count is too large", "7", "1025", "", nil, `LISTEN_FDS is "1025"`},
		{"count with a sign", "7", "+1", "", nil, `LISTEN_FDS is "+1"`},
		{"count is long", "7", strings.Repeat("1", 1000), "", nil, `LISTEN_FDS is "` + strings.Repeat("1", 20) + `"`},
		{"too few names", "7", "2", "web", nil, `LISTEN_FDNAMES has 1 names ("web"); expected 2`},
		{"too many names", "7", "2", "a:b:", nil, `LISTEN_FDNAMES has 3 names ("a:b:"); expected 2`},
	} {
		got, err := parseListenEnv(fakeEnv(c.pid, c.fds, c.names), 7)
		if !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) || (err == nil) != (c.says == "") ||
			err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %q, %v; want %q, and an error that says %q", c.name, got, err, c.want, c.says)
		}
	}
}
