package doctor

import "github.com/myriad-go/myriad/internal/sock"

// Cost is a prediction of the resources that a plan needs.
type Cost struct {
	// Kernel is the kernel memory per connection in bytes, including Plan.Unread. User is the process memory per
	// connection in bytes. If both ends of the connections are on this machine, both ends are included.
	Kernel int64 `json:"kernel"`
	User   int64 `json:"user"`
	// Base is the memory of the processes before the first connection, in bytes.
	Base int64 `json:"base"`
	// Loops is the number of event loops of each server process or, in a plan without a server, of the client. It is 0
	// for I/O models without loops.
	Loops int `json:"loops"`
	// Descriptors is the LimitNOFILE (a systemd setting) that each process needs to hold its share of the connections
	// in one descriptor table. It includes a reserve of one eighth and is at most 2,147,483,584.
	Descriptors int64 `json:"descriptors"`
}

// PredictCosts returns the resources that a plan needs. It reads only its arguments. Its errors are those of Examine.
func PredictCosts(f *Facts, p Plan) (Cost, error) {
	r, err := Examine(f, p)
	if err != nil {
		return Cost{}, err
	}
	x := newAnalysis(f, r.Plan)
	first := &x.endpoints[0]
	return Cost{
		Kernel: x.kernelBytesPerConn(), User: x.userBytesPerConn(), Base: x.baseBytesOfAllProcesses(), Loops: int(x.loopsPerProcess(first, x.n)),
		Descriptors: min(addEighthAndRoundUp(saturatingAdd(first.connsPerProcessWithMargin(x.n), sock.ReservedDescriptors)), maxDescriptors),
	}, nil
}
