package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// networkDir has the files of the calling thread's network namespace; /proc/net has
// those of the process's first thread.
const networkDir = "/proc/thread-self/net/"

// SocketCounts counts TCP sockets.
type SocketCounts struct {
	// Open sockets of this network namespace listen, are connected or on their way
	// to that. TimeWait are what is left of connections that this side closed.
	Open, TimeWait int64
	// Orphans are still to send or to say goodbye, but no process has them. These,
	// Allocated and Pages are of the whole machine: Pages is the memory of TCP's
	// buffers, in the pages in which net.ipv4.tcp_mem counts too.
	Orphans, Allocated, Pages int64
}

// ReadSocketCounts reads how many TCP sockets there are, over IPv4 and IPv6, in the
// network namespace of the calling thread.
func ReadSocketCounts() (SocketCounts, error) {
	b, err := readFile(networkDir + "sockstat")
	if err != nil {
		return SocketCounts{}, err
	}
	// Without IPv6 there is no second file.
	six, err := readFile(networkDir + "sockstat6")
	if err != nil && !Gone(err) {
		return SocketCounts{}, err
	}
	return parseSocketCounts(b, six)
}

// parseSocketCounts parses the line "TCP: inuse 9 orphan 0 tw 0 alloc 9 mem 152" of
// /proc/net/sockstat, and "TCP6: inuse 0" of sockstat6.
func parseSocketCounts(four, six []byte) (SocketCounts, error) {
	var c SocketCounts
	var open6 int64
	err := pairs(four, "TCP:", map[string]*int64{
		"inuse": &c.Open, "orphan": &c.Orphans, "tw": &c.TimeWait, "alloc": &c.Allocated, "mem": &c.Pages,
	})
	if err == nil && len(six) > 0 {
		err = pairs(six, "TCP6:", map[string]*int64{"inuse": &open6})
	}
	if c.Open += open6; err == nil && c.Open < 0 {
		err = errors.New("out of range")
	}
	if err != nil {
		return SocketCounts{}, fmt.Errorf("procfs: sockstat: %w", err)
	}
	return c, nil
}

// pairs reads names with numbers off the line that begins with a word. It fails if
// the line or one of the names is not there.
func pairs(b []byte, first string, into map[string]*int64) error {
	for line := range bytes.Lines(b) {
		fields := strings.Fields(string(line))
		if len(fields) == 0 || fields[0] != first {
			continue
		}
		found := 0
		for i := 1; i+1 < len(fields); i += 2 {
			n, ok := into[fields[i]]
			if !ok {
				continue
			}
			v, err := strconv.ParseUint(fields[i+1], 10, 63)
			if err != nil {
				return fmt.Errorf("%s %s: %w", first, fields[i], err)
			}
			*n = int64(v)
			found++
		}
		if found < len(into) {
			return fmt.Errorf("%s %d of %d expected numbers", first, found, len(into))
		}
		return nil
	}
	return fmt.Errorf("no line %s", first)
}
