// Simulates an exchange of messages between all ranks by SimGrid's flow-level model of a fat tree.
//
// usage: simgrid_exchange < problem, text:
//   ranks_per_node nodes_per_switch switches uplinks   link_bandwidth link_latency memory_bandwidth memory_latency
//   (bytes/s, s) messages, then sender receiver bytes of each, by sender
// Prints, for each rank, a line with the seconds until its last message.
//
// A node is a zone of ranks, each with its own link; SimGrid's fat tree (routing d-mod-k) connects the nodes.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <simgrid/s4u.hpp>

namespace sg4 = simgrid::s4u;
using simgrid::kernel::routing::NetPoint;

struct Problem {
    unsigned ranks_per_node = 0, nodes_per_switch = 0, switches = 0, uplinks = 0;
    double bandwidth = 0, latency = 0, memory_bandwidth = 0, memory_latency = 0;
    std::vector<int> sender, receiver;
    std::vector<double> bytes;
};

static Problem problem;
static std::vector<sg4::Host*> hosts;
static std::vector<double> ended;

static void read_problem() {
    size_t messages = 0;
    Problem& p = problem;
    if (std::scanf("%u %u %u %u %lf %lf %lf %lf %zu", &p.ranks_per_node, &p.nodes_per_switch, &p.switches, &p.uplinks,
                   &p.bandwidth, &p.latency, &p.memory_bandwidth, &p.memory_latency, &messages) != 9)
        std::exit(2);
    p.sender.resize(messages), p.receiver.resize(messages), p.bytes.resize(messages);
    for (size_t k = 0; k < messages; k++)
        if (std::scanf("%d %d %lf", &p.sender[k], &p.receiver[k], &p.bytes[k]) != 3) std::exit(2);
}

static std::pair<NetPoint*, NetPoint*> make_node(sg4::NetZone* tree, const std::vector<unsigned long>&,
                                                 unsigned long id) {
    auto* node = sg4::create_star_zone("node" + std::to_string(id));
    node->set_parent(tree);
    auto* gateway = node->create_router("gateway" + std::to_string(id));
    for (unsigned k = 0; k < problem.ranks_per_node; k++) {
        const auto rank = std::to_string(id * problem.ranks_per_node + k);
        auto* host = node->create_host("rank" + rank, 1e9);
        const auto* link = node->create_split_duplex_link("memory" + rank, problem.memory_bandwidth)
                               ->set_latency(problem.memory_latency / 2)
                               ->seal();
        node->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {{link, sg4::LinkInRoute::Direction::UP}},
                        true);
        hosts.push_back(host);
    }
    node->seal();
    return {node->get_netpoint(), gateway};
}

// The messages of one rank. They use mailboxes, because without them SimGrid (3.32) looks through all messages whenever
// one of them ends.
static void exchange(int rank, size_t begin, size_t end, size_t incoming) {
    static int payload = 0;
    std::vector<sg4::CommPtr> messages;
    for (size_t k = begin; k < end; k++)
        messages.push_back(sg4::Mailbox::by_name(std::to_string(problem.receiver[k]))
                               ->put_async(&payload, static_cast<uint64_t>(problem.bytes[k])));
    std::vector<int*> received(incoming);
    for (int*& one : received) messages.push_back(sg4::Mailbox::by_name(std::to_string(rank))->get_async<int>(&one));
    for (const auto& message : messages) {
        message->wait();
        ended[rank] = std::max(ended[rank], message->get_finish_time());
    }
}

int main(int argc, char** argv) {
    sg4::Engine engine(&argc, argv);
    read_problem();
    const Problem& p = problem;
    auto* tree = sg4::create_fatTree_zone(
        "tree", nullptr, {2, {p.nodes_per_switch, p.switches}, {1, p.uplinks}, {1, 1}},
        sg4::ClusterCallbacks(make_node), p.bandwidth, p.latency / 2, sg4::Link::SharingPolicy::SPLITDUPLEX);
    tree->seal();
    ended.assign(hosts.size(), 0.0);
    std::vector<size_t> incoming(hosts.size());
    for (int receiver : p.receiver) incoming[receiver]++;
    size_t begin = 0, end = 0;
    for (size_t rank = 0; rank < hosts.size(); rank++, begin = end) {
        while (end < p.sender.size() && p.sender[end] == static_cast<int>(rank)) end++;
        sg4::Actor::create("exchange", hosts[rank],
                           [rank, begin, end, n = incoming[rank]] { exchange(static_cast<int>(rank), begin, end, n); });
    }
    engine.run();
    for (double each : ended) std::printf("%.9e\n", each);
}
