package doctor

import "github.com/myriad-go/myriad/internal/sock"

// Cost is what a plan needs, by the models with which Examine predicts walls.
type Cost struct {
	// Kernel and User are bytes per connection, on all sides of the plan together: of the kernel,
	// including Plan.Unread, and of the processes.
	Kernel int64 `json:"kernel"`
	User   int64 `json:"user"`
	// Base is the memory of the processes before the first connection, in bytes.
	Base int64 `json:"base"`
	// Loops is the number of event loops of each server process, or of each client if the plan has
	// no server; 0 for models without loops.
	Loops int `json:"loops"`
	// Descriptors is the LimitNOFILE with which each process holds its share in one table, with an
	// eighth of headroom, at most 2,147,483,584.
	Descriptors int64 `json:"descriptors"`
}

// PredictCosts returns what a plan needs. It reads nothing but its arguments, and fails if Examine does.
func PredictCosts(f *Facts, p Plan) (Cost, error) {
	r, err := Examine(f, p)
	if err != nil {
		return Cost{}, err
	}
	x := newAnalysis(f, r.Plan)
	first := &x.endpoints[0]
	return Cost{
		Kernel: x.kernelBytesPerConn(), User: x.userBytesPerConn(), Base: x.processBytesWithoutConns(), Loops: int(x.loopsPerProcess(first, x.n)),
		Descriptors: min(addEighthAndRoundUp(saturatingAdd(first.connsPerProcessWithMargin(x.n), sock.ReservedDescriptors)), maxDescriptors),
	}, nil
}
