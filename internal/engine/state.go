package engine

// This file is where a connection's state is: the bits of Conn.state, which are the
// core's. Finish and Abandon clear all of them.
//
//	bit              meaning                                           set by             cleared by
//	open             established, not finished                         Open
//	outbound         we dialled                                        Open
//	registered       counted among the connections of its source       Open, RegisterProxiedPeer
//	ownHandler       user is an Owned                                  SetConnHandler
//	greeting         layers are at work: Opened is not called yet      Open, Upgrade      Greeted
//	openPending      Opened is to be called by a worker                Open, Greeted      Deliver
//	inCall           its handler is being called for it                each call          its return
//	silent           the peer has sent nothing yet                     Open, Greeted      Arrived
//	inputHeld        input waits for a worker, for output to drain     Arrived, Deliver   Deliver
//	                 or for Listen: not for more input
//	readPaused       the handler, or a relay, wants no input           Listen, Relay      Listen
//	overHighWater    more is unsent than HighWater, and has not        Write              Sent
//	                 been down to LowWater since
//	blocked          the kernel has taken less than it was given       Sent, Offered      Sent, Room
//	drainedPending   Drained is to be called                           Sent               Deliver
//	drainingPending  Draining is to be called                          Drain              Deliver
//	draining         to be closed at the next idle moment              Drain
//	readBeforeClose  to be read from before it is closed for           Expire, Drain      Empty, Arrived
//	                 silence or a drain
//	relayed          joined with another connection                    Relay
//	peerEOF        the peer sends no more                            OnEOF
//	eofDelivered     the handler, or a partner, knows that             Deliver            Relay
//	closingWrite     our direction is to be shut when all is sent      CloseWrite
//	yielded          it has had its turn; what it holds waits for      Yield              ClearYield, Deliver
//	                 the next one
//	closing          no more input is offered; more says why           CloseWith
//	shut             our direction is shut                             OnWriteShut
//	failed           the transport is of no more use: close at once    Abort, Failed
//
// Above them is counted how many heartbeats the peer has left unanswered, up to 255.
//
// Beside them there are Conn.Armed, whose bits belong to the driver and to package loop,
// which has a table of them, and Host.OnWorkers: whether workers call the handler. While Armed
// has loop.Busy the connection is with a worker, and so are the bits here.
const (
	open uint32 = 1 << iota
	dialled
	sourceCounted
	ownHandler
	handshaking
	openPending
	inCall
	neverHeard
	inputHeld
	readPaused
	overHighWater
	blocked
	drainedPending
	drainingPending
	draining
	readBeforeClose
	relayed
	peerEOF
	eofDelivered
	closingWrite
	closing
	shut
	failed
	yielded

	oneUnanswered  = 1 << 24 // one heartbeat
	unansweredMask = 0xff * oneUnanswered
)

func (c *Conn) is(bits uint32) bool { return c.state&bits != 0 }
