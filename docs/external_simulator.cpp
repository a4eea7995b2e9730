// A simulator in C++ that needs no library: CartPole, over plain sockets.
//
//     g++ -O2 -std=c++17 -o external_simulator external_simulator.cpp
//     ./external_simulator localhost 8600 100
//
// It plays complete episodes and prints the return of each. The requests are those of docs/external-simulators.md.
// The physics are those of Barto, Sutton and Anderson 1983, as in CartPole-v1.

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>

struct Response {
  int status;
  std::string body;
};

struct Closed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One connection, which stays open.
class Connection {
 public:
  Connection(const std::string& host, const std::string& port) : host_(host) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) throw Closed("unknown host " + host);
    for (addrinfo* each = found; each && socket_ < 0; each = each->ai_next) {
      socket_ = socket(each->ai_family, each->ai_socktype, each->ai_protocol);
      if (socket_ >= 0 && connect(socket_, each->ai_addr, each->ai_addrlen) != 0) {
        close(socket_);
        socket_ = -1;
      }
    }
    freeaddrinfo(found);
    if (socket_ < 0) throw Closed("nobody listens at " + host + ":" + port);
    int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~Connection() { close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Response post(const std::string& path, const std::string& json) {
    std::ostringstream request;
    request << "POST " << path << " HTTP/1.1\r\nHost: " << host_ << "\r\nContent-Type: application/json\r\n"
            << "Content-Length: " << json.size() << "\r\n\r\n" << json;
    const std::string text = request.str();
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t count = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) throw Closed("the connection is closed");
      sent += count;
    }
    while (received_.find("\r\n\r\n") == std::string::npos) receive();
    const size_t body = received_.find("\r\n\r\n") + 4;
    std::string headers = received_.substr(0, body);
    const int status = std::atoi(headers.c_str() + headers.find(' '));
    std::transform(headers.begin(), headers.end(), headers.begin(), [](unsigned char c) { return std::tolower(c); });
    const size_t length = headers.find("content-length:");
    if (length == std::string::npos) throw Closed("got a response without its length");
    const size_t end = body + std::strtoul(headers.c_str() + length + 15, nullptr, 10);
    while (received_.size() < end) receive();
    Response response{status, received_.substr(body, end - body)};
    received_.erase(0, end);
    return response;
  }

 private:
  void receive() {
    char buffer[4096];
    const ssize_t count = recv(socket_, buffer, sizeof buffer, 0);
    if (count <= 0) throw Closed("the connection is closed");
    received_.append(buffer, count);
  }

  std::string host_, received_;
  int socket_ = -1;
};

// What follows "key": in a JSON object without nested ones; empty if it is not there. Use a JSON library for more.
std::string value(const std::string& json, const std::string& key) {
  size_t begin = json.find('"' + key + "\":");
  if (begin == std::string::npos) return "";
  begin = json.find_first_not_of(" \"", begin + key.size() + 3);
  return json.substr(begin, json.find_first_of("\",}", begin) - begin);
}

struct CartPole {
  double x, velocity, angle, angular;

  explicit CartPole(std::mt19937& random) {
    std::uniform_real_distribution<double> draw(-0.05, 0.05);
    x = draw(random), velocity = draw(random), angle = draw(random), angular = draw(random);
  }

  // Pushes to the left (0) or to the right (1) for 20 ms. Returns whether the pole has fallen, or the cart left.
  bool push(int action) {
    const double sine = std::sin(angle), cosine = std::cos(angle);
    // A cart of 1 kg, a pole of 0.1 kg and 1 m, a force of 10 N.
    const double pushed = ((action ? 10.0 : -10.0) + 0.05 * angular * angular * sine) / 1.1;
    const double turned = (9.8 * sine - cosine * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1));
    const double moved = pushed - 0.05 * turned * cosine / 1.1;
    x += 0.02 * velocity, velocity += 0.02 * moved, angle += 0.02 * angular, angular += 0.02 * turned;
    return std::abs(x) > 2.4 || std::abs(angle) > 12 * M_PI / 180;
  }

  std::string json() const {
    std::ostringstream text;
    text.precision(9);
    text << "[" << x << ", " << velocity << ", " << angle << ", " << angular << "]";
    return text.str();
  }
};

// Plays one episode. Returns the response that ended it.
Response play(Connection& connection, std::mt19937& random) {
  CartPole cart(random);
  Response response = connection.post("/v1/episodes", "{\"observation\": " + cart.json() + "}");
  const std::string path = "/v1/episodes/" + value(response.body, "episode") + "/steps";
  for (int step = 0; response.status < 300 && !value(response.body, "action").empty(); ++step) {
    const bool fallen = cart.push(std::stoi(value(response.body, "action")));
    const bool truncated = !fallen && step == 499;
    std::ostringstream message;
    message << "{\"step\": " << step << ", \"reward\": 1, \"observation\": " << cart.json()
            << ", \"terminated\": " << (fallen ? "true" : "false")
            << ", \"truncated\": " << (truncated ? "true" : "false") << "}";
    response = connection.post(path, message.str());
  }
  return response;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s HOST PORT NUM_EPISODES\n", argv[0]);
    return 2;
  }
  std::mt19937 random(std::random_device{}());
  try {
    Connection connection(argv[1], argv[2]);
    for (int played = 0; played < std::atoi(argv[3]);) {
      const Response response = play(connection, random);
      if (response.status < 300) {
        std::printf("%s\n", value(response.body, "return").c_str());
        std::fflush(stdout);
        ++played;
      } else if (response.status == 410) {  // the episode was dropped: begin another one
        std::fprintf(stderr, "%s", response.body.c_str());
      } else if (response.status == 503) {  // no slot is free
        sleep(1);
      } else {
        std::fprintf(stderr, "%d %s", response.status, response.body.c_str());
        return 1;
      }
    }
  } catch (const Closed& error) {  // the run has ended
    std::fprintf(stderr, "%s\n", error.what());
  }
}
