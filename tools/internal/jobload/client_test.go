package jobload

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"
)

func TestServerContenders(t *testing.T) {
	for _, name := range []string{managedServer, plainServer, netHTTPServer} {
		t.Run(name, func(t *testing.T) {
			p := newTestPlan(200, 500*time.Millisecond)
			p.Pool, p.Work, p.Connections, p.Sources = name, Limited, 22, 2
			_, r := runPlan(t, t.Context(), p, nil)
			s := r.Server
			if r.Finished == 0 || r.Finished+r.Rejected != r.Offered || s == nil || s.CPU == 0 || s.Recovery > maxRecovery/2 {
				t.Errorf("%+v, server %+v; expected all jobs to finish or to find no connection, and a recovery", r, s)
			} else if s.FinishedOfOthers == 0 || s.FinishedOfOthers > s.Finished {
				t.Errorf("server %+v; expected jobs of two further sources", s)
			}
		})
	}
}

func TestReadAnswer(t *testing.T) {
	for _, c := range []struct {
		in, rest, err string
		isOK          bool
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndonerest", "rest", "", true},
		{"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\nA: b\r\n\r\nno", "", "", false},
		{"HTTP/1.1 500 Internal Server Error\r\n\r\n", "\r\n", "expected status 200 or 503", false},
		{"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "\r\n", "invalid syntax", false},
		{"HTTP/1.1 200 OK\r\nContent", "", "EOF", true},
	} {
		in := bufio.NewReader(strings.NewReader(c.in))
		isOK, err := readResponseReportingOK(in)
		rest, _ := io.ReadAll(in)
		if err == nil && (c.err != "" || isOK != c.isOK) || err != nil && (c.err == "" || !strings.Contains(err.Error(), c.err)) || string(rest) != c.rest {
			t.Errorf("%q: %v, %v, then %q; expected %v, %q, %q", c.in, isOK, err, rest, c.isOK, c.err, c.rest)
		}
	}
}
