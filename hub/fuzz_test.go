package hub

import (
	"regexp"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// nondeterministic matches inputs whose output varies with time, counters, memory or goroutines.
var nondeterministic = regexp.MustCompile(`(?i)time|info|list|kill|/`)

// FuzzCommands sends arbitrary bytes, whole and in parts. Output must not depend on the parts, and no
// subscription may remain.
func FuzzCommands(f *testing.F) {
	for _, in := range []string{
		"PING\r\nSUBSCRIBE a b\r\nPING x\r\nUNSUBSCRIBE\r\nPUNSUBSCRIBE\r\n",
		testkit.RESPCommand("HELLO", "3", "SETNAME", "ann") + testkit.RESPCommand("PSUBSCRIBE", "*", "a?") + testkit.RESPCommand("PUBLISH", "ab", "x") + "RESET\r\nCLIENT GETNAME\r\n",
		"SSUBSCRIBE a\r\nSPUBLISH a x\r\nHELLO 3\r\nSUNSUBSCRIBE\r\nPUBSUB SHARDNUMSUB a\r\n",
		"CLIENT REPLY OFF\r\nSUBSCRIBE a\r\nPING\r\nCLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\nPING\r\nPING\r\n",
		"AUTH a b\r\nAUTH a\r\nHELLO 2 AUTH default x\r\nSELECT 0\r\nSELECT 1\r\nECHO \"a\\x00\"\r\nQUIT\r\nPING\r\n",
		"PUBSUB CHANNELS\r\nPUBSUB CHANNELS *\r\nPUBSUB NUMPAT\r\nCOMMAND COUNT\r\nCOMMAND DOCS ping\r\nCONFIG GET s*\r\n",
		"CLIENT LIST\r\nCLIENT KILL SKIPME no\r\nCLIENT KILL 1.2.3.4:5\r\nPING\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST a\r\n", "*1\r\n$4\r\nPING\r\n*3\r\n$9\r\nSUBSCRIBE\r\n$0\r\n\r\n$1\r\na\r\n", "*-1\r\n*x\r\n",
		"INFO\r\nTIME\r\nACL WHOAMI\r\nFLUSHDB\r\nCLIENT NO-TOUCH on\r\nCLIENT SETINFO lib-name x\r\n",
	} {
		f.Add(in, 5)
	}
	f.Fuzz(func(t *testing.T, in string, part int) {
		if len(in) > 4000 || strings.Count(strings.ToLower(in), "auth") >= 10 { // too many logins close the client later
			return
		}
		whole, heard := runCommandsInParts(t, in, len(in))
		for _, part := range []int{1, 1 + max(0, part)%100} {
			got, also := runCommandsInParts(t, in, part)
			if !nondeterministic.MatchString(in) && (got != whole || also != heard) {
				t.Fatalf("in parts of %d bytes\n%.500q\nas a whole\n%.500q\nthe subscriber has\n%.200q\nand\n%.200q", part, got, whole, also, heard)
			}
		}
	})
}

// runCommandsInParts returns what the client and a subscriber to everything receive for input sent in parts.
func runCommandsInParts(t *testing.T, input string, partSize int) (client, subscriber string) {
	later := nondeterministic.MatchString(input)
	h := new(Hub)
	s := tcptest.NewServer(t, &tcp.Server{Handler: h.Handler(), Limits: tcp.Limits{MaxMessage: 1000, MaxUnsent: 4000}})
	p, all := s.Dial(), s.Dial()
	all.Send("PSUBSCRIBE *\r\n")
	for input != "" {
		n := min(partSize, len(input))
		if _, err := p.Write([]byte(input[:n])); err != nil {
			break // closed
		}
		input = input[n:]
		client += p.Output()
	}
	p.CloseWrite()
	client += p.Output()
	subscriber = all.Output()
	all.Reset()
	if _, closed := p.Closed(); closed {
		expectNoSubscriptions(t, h)
	} else if !later {
		t.Errorf("the client has ended, and the connection is open")
	}
	return client, subscriber
}
