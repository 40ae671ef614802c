package doctor

import (
	"errors"
	"strings"
	"testing"
)

func TestWriteApplied(t *testing.T) {
	undo := []Change{{Nofile, "nofile", "5000:5000", "1024:4096"}, {Sysctl, "net.core.somaxconn", "65535", "4096"}}
	failed := errors.Join(&ChangeError{Change{Kind: Link, Name: "eth9"}, errors.New("no such interface")})
	for _, c := range []struct {
		undo   []Change
		failed error
		want   string
	}{
		{undo, failed, `
Changed:
  net.core.somaxconn: 4096 -> 65535
  nofile: 1024:4096 -> 5000:5000

Not done:
  link eth9: no such interface

To undo:
  ulimit -Sn 1024 && ulimit -Hn 4096
  sysctl -w net.core.somaxconn=4096
`},
		{nil, errors.New("doctor: too many"), "\nNot done:\n  doctor: too many\n"},
		{nil, nil, ""},
	} {
		var out strings.Builder
		if err := WriteApplied(&out, c.undo, c.failed); err != nil || out.String() != c.want {
			t.Errorf("%v, %s; expected %s", err, &out, c.want)
		}
	}
}
